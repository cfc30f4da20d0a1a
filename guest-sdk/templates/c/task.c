// {{name}}: a task script for Heddle, as a WASI command.
//
// Params come as JSON on standard input, the context as JSON in the environment variable HEDDLE_CONTEXT. The output goes
// as JSON to standard output, standard error is the log. Exit code 0 succeeds, any other fails retryably.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Params longer than this are refused.
enum { MAX_PARAMS_BYTES = 64 * 1024 };

static char params[MAX_PARAMS_BYTES + 1];

// The text of a member that is a string, still escaped as in the JSON, and its length. For more than this, add a JSON
// library (cJSON is one file).
static const char *string_member(const char *json, const char *name, size_t *length) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const char *at = strstr(json, quoted);
    if (at == NULL) return NULL;
    at += strlen(quoted);
    at += strspn(at, " \t\r\n");
    if (*at++ != ':') return NULL;
    at += strspn(at, " \t\r\n");
    if (*at++ != '"') return NULL;
    const char *end = at;
    while (*end != '\0' && *end != '"') end += *end == '\\' && end[1] != '\0' ? 2 : 1;
    if (*end != '"') return NULL;
    *length = (size_t)(end - at);
    return at;
}

int main(void) {
    size_t read = fread(params, 1, MAX_PARAMS_BYTES + 1, stdin);
    if (read > MAX_PARAMS_BYTES) {
        fprintf(stderr, "params have more than %d bytes\n", MAX_PARAMS_BYTES);
        return EXIT_FAILURE;
    }
    params[read] = '\0';

    size_t length = strlen("world");
    const char *name = string_member(params, "name", &length);
    if (name == NULL) name = "world";
    fprintf(stderr, "greeting %.*s\n", (int)length, name);
    // Copied as it was escaped, so it is valid JSON again.
    printf("{\"greeting\": \"Hello, %.*s!\"}\n", (int)length, name);
    return EXIT_SUCCESS;
}
