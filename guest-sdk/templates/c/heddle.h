// What a Heddle task in C is given, and how it ends: one header, of which one file of a program defines
// HEDDLE_IMPLEMENTATION before including it. This file is yours: change it as you like.
//
//     #define HEDDLE_IMPLEMENTATION
//     #include "heddle.h"
//
//     int main(void) {
//         const char *name = heddle_string(heddle_params(), "name", "world");
//         heddle_log("greeting %s", name);
//         printf("{\"greeting\": ");
//         heddle_print_string("Hello!");
//         printf("}\n");
//     }
//
// Standard output is the task's output, as JSON; nothing is null. Standard error is its log. Exit code 0 succeeds, any
// other fails, and the task's retry policy decides whether there is another attempt. Nothing has to be freed: an attempt
// ends with its memory.

#ifndef HEDDLE_H
#define HEDDLE_H

#include <stdbool.h>
#include <stddef.h>

// A JSON value: a place in a text that has been checked. Without one (`at` is NULL) it is not there.
typedef struct {
    const char *at;
} heddle_json;

// The run's params. Standard input is read at the first call; what is no JSON fails the attempt.
heddle_json heddle_params(void);

// Who is running, and for what: an object with run, group, task, attempt (from 1), trigger, logical_time, data_interval
// (start and end), deadline, item (item, index and count in a mapped task, else null) and idempotency_key.
heddle_json heddle_context(void);

// A member of an object. It is not there if the object has none of this name, is null, or is not there itself.
heddle_json heddle_member(heddle_json object, const char *name);

// The elements of an array: for (heddle_json it = heddle_first(array); it.at; it = heddle_next(it)) ...
heddle_json heddle_first(heddle_json array);
heddle_json heddle_next(heddle_json element);

// A member as what it should be. If it is not there, `otherwise`; if it is something else, the attempt fails and says so.
const char *heddle_string(heddle_json object, const char *name, const char *otherwise);
double heddle_number(heddle_json object, const char *name, double otherwise);
bool heddle_boolean(heddle_json object, const char *name, bool otherwise);
heddle_json heddle_array(heddle_json object, const char *name);
heddle_json heddle_object(heddle_json object, const char *name);

// The same of an element, or any value; it has to be there.
const char *heddle_as_string(heddle_json value);
double heddle_as_number(heddle_json value);

// A line of the log.
__attribute__((format(printf, 1, 2))) void heddle_log(const char *format, ...);

// Ends the attempt as failed; the message becomes the attempt's.
__attribute__((format(printf, 1, 2))) _Noreturn void heddle_fail(const char *format, ...);

// To standard output: a text as a JSON string, in quotes; a number, or null if it is none.
void heddle_print_string(const char *text);
void heddle_print_number(double number);

#endif

#ifdef HEDDLE_IMPLEMENTATION

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Deeper JSON is refused: it is read by recursion.
enum { HEDDLE_MAX_DEPTH = 128 };

static void heddle_write_log(const char *format, va_list arguments) {
    // One write for a line; what is longer is cut.
    char line[4096];
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    if (length < 0) return;
    if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    fwrite(line, 1, (size_t)length + 1, stderr);
}

void heddle_log(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    heddle_write_log(format, arguments);
    va_end(arguments);
}

_Noreturn void heddle_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    heddle_write_log(format, arguments);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

static void *heddle_allocate(void *old, size_t bytes) {
    void *memory = realloc(old, bytes);
    if (memory == NULL) heddle_fail("out of memory: %zu bytes", bytes);
    return memory;
}

static const char *heddle_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static int heddle_hex(const char *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        if (c >= '0' && c <= '9') {
            value = value * 16 + (c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            value = value * 16 + ((c | 0x20) - 'a' + 10);
        } else {
            return -1;
        }
    }
    return value;
}

// Behind a value, or NULL if there is none. This is what checks the text; all else trusts it.
static const char *heddle_skip(const char *at, int depth) {
    if (depth > HEDDLE_MAX_DEPTH) return NULL;
    at = heddle_space(at);
    if (*at == '"') {
        for (at++; *at != '"'; at++) {
            if ((unsigned char)*at < 0x20) return NULL;
            if (*at != '\\') continue;
            at++;
            if (*at == 'u') {
                if (heddle_hex(at + 1) < 0) return NULL;
                at += 4;
            } else if (*at == '\0' || strchr("\"\\/bfnrt", *at) == NULL) {
                return NULL;
            }
        }
        return at + 1;
    }
    if (*at == '[' || *at == '{') {
        bool object = *at == '{';
        char close = object ? '}' : ']';
        at = heddle_space(at + 1);
        if (*at == close) return at + 1;
        for (;;) {
            if (object) {
                at = heddle_space(at);
                if (*at != '"' || (at = heddle_skip(at, depth)) == NULL) return NULL;
                at = heddle_space(at);
                if (*at++ != ':') return NULL;
            }
            if ((at = heddle_skip(at, depth + 1)) == NULL) return NULL;
            at = heddle_space(at);
            if (*at == close) return at + 1;
            if (*at++ != ',') return NULL;
        }
    }
    for (int i = 0; i < 3; i++) {
        const char *word = (const char *[]){"true", "false", "null"}[i];
        if (strncmp(at, word, strlen(word)) == 0) return at + strlen(word);
    }
    const char *digits = "0123456789";
    if (*at == '-') at++;
    size_t whole = strspn(at, digits);
    if (whole == 0 || (whole > 1 && *at == '0')) return NULL;
    at += whole;
    if (*at == '.') {
        size_t fraction = strspn(at + 1, digits);
        if (fraction == 0) return NULL;
        at += 1 + fraction;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        size_t exponent = strspn(at, digits);
        if (exponent == 0) return NULL;
        at += exponent;
    }
    return at;
}

static heddle_json heddle_checked(const char *text, const char *what) {
    const char *end = heddle_skip(text, 0);
    if (end == NULL || *heddle_space(end) != '\0') heddle_fail("%s: no JSON, or deeper than %d", what, HEDDLE_MAX_DEPTH);
    return (heddle_json){heddle_space(text)};
}

heddle_json heddle_params(void) {
    static heddle_json params;
    if (params.at != NULL) return params;
    size_t used = 0, room = 4096;
    char *text = heddle_allocate(NULL, room);
    for (size_t more; (more = fread(text + used, 1, room - used - 1, stdin)) > 0;) {
        used += more;
        if (used == room - 1) text = heddle_allocate(text, room *= 2);
    }
    text[used] = '\0';
    params = heddle_checked(used == 0 ? "{}" : text, "params");
    return params;
}

heddle_json heddle_context(void) {
    static heddle_json context;
    if (context.at == NULL) {
        const char *text = getenv("HEDDLE_CONTEXT");
        context = heddle_checked(text == NULL ? "{}" : text, "HEDDLE_CONTEXT");
    }
    return context;
}

// A string's text without its escapes.
static char *heddle_unescape(const char *at) {
    char *text = heddle_allocate(NULL, (size_t)(heddle_skip(at, 0) - at));
    char *to = text;
    for (at++; *at != '"'; at++) {
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        at++;
        const char *short_ones = "bfnrt", *found = *at == 'u' ? NULL : strchr(short_ones, *at);
        if (found != NULL) {
            *to++ = "\b\f\n\r\t"[found - short_ones];
        } else if (*at != 'u') {
            *to++ = *at;
        } else {
            unsigned code = (unsigned)heddle_hex(at + 1);
            at += 4;
            if (code >= 0xD800 && code < 0xDC00 && at[1] == '\\' && at[2] == 'u') {
                unsigned low = (unsigned)heddle_hex(at + 3);
                if (low >= 0xDC00 && low < 0xE000) {
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                    at += 6;
                }
            }
            // Half a pair is no character.
            if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
            if (code == 0) heddle_fail("a text with a NUL, which C cannot hold");
            if (code < 0x80) {
                *to++ = (char)code;
            } else if (code < 0x800) {
                *to++ = (char)(0xC0 | code >> 6);
                *to++ = (char)(0x80 | (code & 0x3F));
            } else if (code < 0x10000) {
                *to++ = (char)(0xE0 | code >> 12);
                *to++ = (char)(0x80 | (code >> 6 & 0x3F));
                *to++ = (char)(0x80 | (code & 0x3F));
            } else {
                *to++ = (char)(0xF0 | code >> 18);
                *to++ = (char)(0x80 | (code >> 12 & 0x3F));
                *to++ = (char)(0x80 | (code >> 6 & 0x3F));
                *to++ = (char)(0x80 | (code & 0x3F));
            }
        }
    }
    *to = '\0';
    return text;
}

heddle_json heddle_member(heddle_json object, const char *name) {
    heddle_json none = {NULL}, found = none;
    if (object.at == NULL || *object.at != '{') return none;
    const char *at = heddle_space(object.at + 1);
    while (*at == '"') {
        char *key = heddle_unescape(at);
        bool same = strcmp(key, name) == 0;
        free(key);
        at = heddle_space(heddle_space(heddle_skip(at, 0)) + 1);
        // The last one of a name counts.
        if (same) found = *at == 'n' ? none : (heddle_json){at};
        at = heddle_space(heddle_skip(at, 0));
        if (*at == ',') at = heddle_space(at + 1);
    }
    return found;
}

heddle_json heddle_first(heddle_json array) {
    if (array.at == NULL || *array.at != '[') return (heddle_json){NULL};
    const char *at = heddle_space(array.at + 1);
    return (heddle_json){*at == ']' ? NULL : at};
}

heddle_json heddle_next(heddle_json element) {
    const char *at = heddle_space(heddle_skip(element.at, 0));
    return (heddle_json){*at == ',' ? heddle_space(at + 1) : NULL};
}

static heddle_json heddle_of_kind(heddle_json object, const char *name, const char *first, const char *kind) {
    heddle_json found = heddle_member(object, name);
    if (found.at != NULL && strchr(first, *found.at) == NULL) heddle_fail("`%s` is no %s", name, kind);
    return found;
}

static const char heddle_number_begins[] = "-0123456789";

const char *heddle_string(heddle_json object, const char *name, const char *otherwise) {
    heddle_json found = heddle_of_kind(object, name, "\"", "string");
    return found.at == NULL ? otherwise : heddle_unescape(found.at);
}

double heddle_number(heddle_json object, const char *name, double otherwise) {
    heddle_json found = heddle_of_kind(object, name, heddle_number_begins, "number");
    return found.at == NULL ? otherwise : strtod(found.at, NULL);
}

bool heddle_boolean(heddle_json object, const char *name, bool otherwise) {
    heddle_json found = heddle_of_kind(object, name, "tf", "boolean");
    return found.at == NULL ? otherwise : *found.at == 't';
}

heddle_json heddle_array(heddle_json object, const char *name) { return heddle_of_kind(object, name, "[", "array"); }

heddle_json heddle_object(heddle_json object, const char *name) { return heddle_of_kind(object, name, "{", "object"); }

const char *heddle_as_string(heddle_json value) {
    if (value.at == NULL || *value.at != '"') heddle_fail("a string was expected");
    return heddle_unescape(value.at);
}

double heddle_as_number(heddle_json value) {
    if (value.at == NULL || strchr(heddle_number_begins, *value.at) == NULL) heddle_fail("a number was expected");
    return strtod(value.at, NULL);
}

void heddle_print_string(const char *text) {
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            putchar('\\');
            putchar(*at);
        } else if (*at < 0x20) {
            printf("\\u%04x", *at);
        } else {
            putchar(*at);
        }
    }
    putchar('"');
}

void heddle_print_number(double number) {
    if (!isfinite(number)) {
        printf("null");
        return;
    }
    // As few digits as give the same number.
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) break;
    }
    printf("%s", text);
}

#endif
