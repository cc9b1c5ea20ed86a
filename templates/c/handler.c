/* {{name}} greets the guest that the message names. */
#include "hostler.h"

int main(void) {
    struct hostler_message message;
    if (hostler_receive(&message) != 0) return hostler_fail("cannot read the message");

    size_t size;
    const char *name = hostler_json_string(message.body, "name", &size);
    if (!name || strlen(message.body) != message.size) return hostler_dead_letter("the body is not a JSON object with a string `name`");
    if (size == 0) return hostler_dead_letter("the body has no name");

    /* Standard output is the reply, and the exit code the outcome. */
    printf("Hello, ");
    fwrite(name, 1, size, stdout);
    printf("!");
    return HOSTLER_ACK;
}
