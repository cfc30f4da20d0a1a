// {{name}}: a task script for Heddle, as a WASI command. `heddle.h` says what there is.

#include <stdio.h>

#define HEDDLE_IMPLEMENTATION
#include "heddle.h"

int main(void) {
    const char *name = heddle_string(heddle_params(), "name", "world");
    if (*name == '\0') heddle_fail("name is empty");
    double attempt = heddle_number(heddle_context(), "attempt", 1);
    heddle_log("greeting %s, attempt %.0f", name, attempt);

    char greeting[256];
    snprintf(greeting, sizeof greeting, "Hello, %s!", name);
    printf("{\"greeting\": ");
    heddle_print_string(greeting);
    printf("}\n");
}
