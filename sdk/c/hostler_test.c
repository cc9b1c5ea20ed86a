/* Tests of hostler.h: `make` builds and runs them on this machine, in a temporary folder. */
#undef NDEBUG
#include <assert.h>

#include "hostler.h"

static int is(const char *json, const char *name, const char *expected) {
    size_t size = 0;
    char *text = hostler_json_string(json, name, &size);
    return expected ? text && size == strlen(expected) && strcmp(text, expected) == 0 : text == NULL;
}

static void strings_of_objects(void) {
    assert(is("{\"a\":\"1\"}", "a", "1"));
    assert(is(" { \"a\" : [1, {\"b\":\"no\"}] , \"b\" : \"yes\" } \n", "b", "yes"));
    assert(is("{\"a\":\"1\",\"a\":\"2\"}", "a", "2"));
    assert(is("{\"a\":\"\"}", "a", ""));
    assert(is("{\"\":\"empty\"}", "", "empty"));
    assert(is("{\"\\u0061\":\"escaped\"}", "a", "escaped"));
    assert(is("{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "a", "\"\\/\b\f\n\r\t"));
    assert(is("{\"a\":\"Z\\u00fcrich \\u20AC \\ud83d\\udeb2 Zürich 🚲\"}", "a", "Zürich € 🚲 Zürich 🚲"));
    assert(is("{\"t\":true,\"f\":false,\"n\":null,\"x\":-1.5e+3,\"y\":0,\"z\":10E2,\"e\":[],\"o\":{},\"a\":\"1\"}", "a", "1"));

    size_t size = 0;
    char *text = hostler_json_string("{\"a\":\"1\\u00002\"}", "a", &size);
    assert(size == 3 && memcmp(text, "1\0002", 3) == 0);
}

static void what_is_no_such_object(void) {
    static const char *const wrong[] = {
        "", "a", "[]", "\"a\"", "{", "{\"a\"", "{\"a\":", "{\"a\":\"1\"", "{\"a\":\"1\",}", "{\"a\":\"1\"} x", "{a:\"1\"}",
        "{\"a\":\"1\" \"b\":2}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12\"}", "{\"a\":\"\\ud83d\"}", "{\"a\":\"\\udeb2\"}",
        "{\"a\":\"\\ud83d\\u0041\"}", "{\"a\":\"\n\"}", "{\"a\":\"1\",\"b\":01}", "{\"a\":\"1\",\"b\":.5}", "{\"a\":\"1\",\"b\":1.}",
        "{\"a\":\"1\",\"b\":1e}", "{\"a\":\"1\",\"b\":-}", "{\"a\":\"1\",\"b\":tru}", "{\"a\":\"1\",\"b\":[1,]}", "{\"a\":\"1\",\"b\":[1}",
        "{\"a\":\"1\\", "{\"a\":\"1\\u", "{\"a\":\"1\",\"b\":[",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert(is(wrong[i], "a", NULL));
    assert(is("{\"a\":1,\"b\":\"a\"}", "a", NULL));
    assert(is("{\"ab\":\"1\"}", "a", NULL));

    char deep[400] = "{\"a\":\"1\",\"b\":";
    memset(deep + strlen(deep), '[', 200);
    assert(is(deep, "a", NULL));
}

static void attributes(void) {
    size_t size = 0;
    unsetenv("MESSAGE_ATTRIBUTES");
    assert(!hostler_attribute("a", &size));
    setenv("MESSAGE_ATTRIBUTES", "{\"raw\":{\"base64\":\"AP8Q\"},\"one\":{\"base64\":\"QQ==\"},\"base64\":\"text\",\"a\":\"1\"}", 1);
    assert(memcmp(hostler_attribute("raw", &size), "\0\377\020", 4) == 0 && size == 3);
    assert(strcmp(hostler_attribute("one", &size), "A") == 0 && size == 1);
    assert(strcmp(hostler_attribute("a", NULL), "1") == 0);
    assert(strcmp(hostler_attribute("base64", NULL), "text") == 0);
    assert(!hostler_attribute("b", &size));
}

static void the_message(void) {
    struct hostler_message message;
    setenv("MESSAGE_ID", "m-1", 1);
    setenv("MESSAGE_CHANNEL", "news.mobile", 1);
    setenv("MESSAGE_ATTEMPT", "2", 1);
    /* Sizes around those that the buffer grows at. */
    static const size_t sizes[] = {0, 1, 65534, 65535, 65536, 131071, 1048576};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        FILE *file = freopen("body.tmp", "wb+", stdin);
        assert(file);
        for (size_t at = 0; at < sizes[i]; at++) putc((int)(at % 251), file);
        rewind(file);
        assert(hostler_receive(&message) == 0);
        assert(message.size == sizes[i] && message.body[sizes[i]] == '\0');
        for (size_t at = 0; at < sizes[i]; at++) assert((unsigned char)message.body[at] == at % 251);
        free(message.body);
    }
    remove("body.tmp");
    assert(strcmp(message.id, "m-1") == 0 && strcmp(message.channel, "news.mobile") == 0 && message.attempt == 2);
}

static void outcomes(void) {
    char said[200] = "";
    assert(freopen("said.tmp", "wb+", stderr));
    assert(hostler_dead_letter("row %d:\nno name", 3) == 65);
    assert(hostler_retry("%s", "the bank is away") == 75);
    assert(hostler_fail("%s", "broken") == 1);
    rewind(stderr);
    assert(fread(said, 1, sizeof said - 1, stderr) > 0);
    remove("said.tmp");
    assert(strcmp(said, "row 3: no name\nthe bank is away\nbroken\n") == 0);
}

int main(void) {
    strings_of_objects();
    what_is_no_such_object();
    attributes();
    the_message();
    outcomes();
    puts("hostler.h: ok");
    return 0;
}
