/* The conformance guest in C: does what the attribute `do` says. */
#include "hostler.h"

/* Does with each message of a batch what its body says. The id comes first in a line, and these bodies need no unescaping. */
static int answer_lines(void) {
    char line[4096], id[256];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "{\"id\":\"%255[^\"]\"", id) != 1) return hostler_fail("this line has no id: %s", line);
        if (strstr(line, "\"body\":\"never\"")) {
            printf("{\"id\":\"%s\",\"outcome\":\"dead-letter\",\"reason\":\"as told\"}\n", id);
        } else {
            printf("{\"id\":\"%s\",\"outcome\":\"ack\"}\n", id);
        }
    }
    return HOSTLER_ACK;
}

int main(void) {
    /* The lines of a batch name their messages; no variable does. */
    if (!getenv("MESSAGE_ID")) return answer_lines();
    struct hostler_message message;
    if (hostler_receive(&message) != 0) return hostler_fail("cannot read the message");
    const char *what = hostler_attribute("do", NULL);
    if (!what) return hostler_dead_letter("there is no attribute `do`");
#define IS(name) (strcmp(what, name) == 0)
    if (IS("ack")) return HOSTLER_ACK;
    if (IS("reply")) return fwrite(message.body, 1, message.size, stdout) == message.size ? HOSTLER_ACK : HOSTLER_FAILED;
    if (IS("retry")) return hostler_retry("%s", message.body);
    if (IS("dead-letter")) return hostler_dead_letter("%s", message.body);
    if (IS("error")) return hostler_fail("%s", message.body);
    if (IS("trap")) abort();
    if (IS("loop")) {
        /* An endless loop without effects would be undefined, and optimised away. */
        for (volatile int forever = 1; forever;) continue;
    }
    if (IS("length")) return printf("%zu", message.size) > 0 ? HOSTLER_ACK : HOSTLER_FAILED;
    /* All of them are text here, so they are an object of texts already. */
    if (IS("attributes")) return fputs(getenv("MESSAGE_ATTRIBUTES"), stdout) >= 0 ? HOSTLER_ACK : HOSTLER_FAILED;
    if (IS("context")) return printf("{\"attempt\":%u}", message.attempt) > 0 ? HOSTLER_ACK : HOSTLER_FAILED;
    if (IS("hooks")) return fputs("handle\n", stderr) >= 0 ? HOSTLER_ACK : HOSTLER_FAILED;
    return hostler_dead_letter("this guest cannot do `%s`", what);
}
