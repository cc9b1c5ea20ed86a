/* hostler.h: functions for a handler that is a C program, built for wasm32-wasi.
 *
 *     int main(void) {
 *         struct hostler_message message;
 *         if (hostler_receive(&message) != 0) return hostler_fail("cannot read the message");
 *         if (message.size == 0) return hostler_dead_letter("the body is empty");
 *         …
 *         return HOSTLER_ACK;
 *     }
 *
 * The value that main returns is the outcome. The reason is the last line of standard error, which the functions below
 * write. If the consumer's config contains reply = "stdout", standard output is the reply. Otherwise, hostler logs it.
 *
 * The functions free no memory that they return, because the program ends after one message.
 */
#ifndef HOSTLER_H
#define HOSTLER_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Exit codes that hostler interprets (sysexits.h). Any other exit code means that the attempt failed. */
enum { HOSTLER_ACK = 0, HOSTLER_FAILED = 1, HOSTLER_DEAD_LETTER = 65, HOSTLER_RETRY = 75 };

/* One delivery of a message. */
struct hostler_message {
    const char *id;      /* the same for all deliveries: a key for work that must happen only once */
    const char *channel; /* "<queue>" or "<exchange>.<queue>" */
    unsigned attempt;    /* number of this delivery; the first is 1 */
    char *body;          /* `size` bytes, followed by a NUL */
    size_t size;
};

/* Reads the message. Returns 0, or -1 if an allocation fails or standard input cannot be read. */
static inline int hostler_receive(struct hostler_message *message) {
    const char *attempt = getenv("MESSAGE_ATTEMPT");
    size_t room = 64 * 1024, size = 0;
    char *body = malloc(room);

    while (body) {
        size += fread(body + size, 1, room - size - 1, stdin);
        if (size < room - 1) break;
        char *larger = realloc(body, room *= 2);
        if (!larger) free(body);
        body = larger;
    }
    if (!body || ferror(stdin)) return -1;
    body[size] = '\0';
    message->id = getenv("MESSAGE_ID");
    message->channel = getenv("MESSAGE_CHANNEL");
    message->attempt = attempt ? (unsigned)strtoul(attempt, NULL, 10) : 0;
    message->body = body;
    message->size = size;
    return 0;
}

static inline int hostler_say(int code, const char *format, va_list values) {
    char reason[1024];
    vsnprintf(reason, sizeof reason, format, values);
    for (char *at = reason; *at; at++) {
        if (*at == '\n' || *at == '\r') *at = ' '; /* hostler uses only the last line as the reason */
    }
    fprintf(stderr, "%s\n", reason);
    return code;
}

#if defined(__GNUC__)
#define HOSTLER_PRINTF __attribute__((format(printf, 1, 2)))
#else
#define HOSTLER_PRINTF
#endif

/* Reports that the message can never be processed. hostler moves it to the dead-letter queue, with this reason. Return the
 * result from main. This also applies to the two functions below. */
HOSTLER_PRINTF static inline int hostler_dead_letter(const char *format, ...) {
    va_list values;
    va_start(values, format);
    int code = hostler_say(HOSTLER_DEAD_LETTER, format, values);
    va_end(values);
    return code;
}

/* Requests another attempt. The consumer's retry policy decides whether and when. */
HOSTLER_PRINTF static inline int hostler_retry(const char *format, ...) {
    va_list values;
    va_start(values, format);
    int code = hostler_say(HOSTLER_RETRY, format, values);
    va_end(values);
    return code;
}

/* Reports that this attempt failed. The consumer's retry policy decides what happens next. */
HOSTLER_PRINTF static inline int hostler_fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    int code = hostler_say(HOSTLER_FAILED, format, values);
    va_end(values);
    return code;
}

/* --- JSON functions, for attributes and for handlers ---------------------------------------------------------------- */

static inline const char *hostler_json_space(const char *at) {
    return at + strspn(at, " \t\n\r");
}

static inline int hostler_json_hex(const char *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF", *digit = at[i] ? strchr(digits, at[i]) : NULL;
        if (!digit) return -1;
        value = value * 16 + (int)(digit - digits) % 16;
    }
    return value;
}

/* Decodes the JSON string that begins at `*from`. Writes the text to `to` unless `to` is NULL; `to` must be as long as the
 * source. Returns the size of the text, and moves `*from` past the string. Returns -1 if it is not a JSON string. */
static inline long hostler_json_read(const char **from, char *to) {
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *at = *from;
    long size = 0;

    if (*at++ != '"') return -1;
    while (*at != '"') {
        unsigned char bytes[4] = {(unsigned char)*at};
        int count = 1;
        if (bytes[0] < 0x20) return -1;
        if (*at++ == '\\') {
            const char *escape = *at ? strchr(escapes, *at) : NULL;
            if (escape) {
                bytes[0] = (unsigned char)meant[escape - escapes];
                at++;
            } else {
                long point = *at == 'u' ? hostler_json_hex(at + 1) : -1;
                if (point < 0) return -1;
                at += 5;
                if (point >= 0xd800 && point < 0xdc00 && at[0] == '\\' && at[1] == 'u') {
                    long low = hostler_json_hex(at + 2);
                    if (low >= 0xdc00 && low < 0xe000) {
                        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
                        at += 6;
                    }
                }
                if (point >= 0xd800 && point < 0xe000) return -1; /* one half of a surrogate pair */
                count = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
                for (int i = count - 1; i > 0; i--, point >>= 6) bytes[i] = (unsigned char)(0x80 | (point & 0x3f));
                bytes[0] = (unsigned char)(count == 1 ? point : (0xf00 >> count & 0xff) | point);
            }
        }
        if (to) memcpy(to + size, bytes, (size_t)count);
        size += count;
    }
    *from = at + 1;
    return size;
}

/* Returns the end of the JSON value that begins at `at`. Returns NULL if the value is invalid, or nested deeper than
 * `depth`. */
static inline const char *hostler_json_end(const char *at, int depth) {
    if (depth == 0) return NULL;
    if (*at == '"') return hostler_json_read(&at, NULL) < 0 ? NULL : at;
    if (*at == '{' || *at == '[') {
        char close = *at == '{' ? '}' : ']';
        at = hostler_json_space(at + 1);
        if (*at == close) return at + 1;
        for (;;) {
            if (close == '}') {
                if (hostler_json_read(&at, NULL) < 0) return NULL;
                at = hostler_json_space(at);
                if (*at++ != ':') return NULL;
                at = hostler_json_space(at);
            }
            at = hostler_json_end(at, depth - 1);
            if (!at) return NULL;
            at = hostler_json_space(at);
            if (*at == close) return at + 1;
            if (*at++ != ',') return NULL;
            at = hostler_json_space(at);
        }
    }
    for (int i = 0; i < 3; i++) {
        const char *word = &"true\0\0false\0null\0"[6 * i];
        if (strncmp(at, word, strlen(word)) == 0) return at + strlen(word);
    }
    at += *at == '-';
    if (*at == '0') at++;
    else if (*at >= '1' && *at <= '9') at += strspn(at, "0123456789");
    else return NULL;
    if (*at == '.') {
        size_t digits = strspn(++at, "0123456789");
        if (digits == 0) return NULL;
        at += digits;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '+' || *at == '-';
        size_t digits = strspn(at, "0123456789");
        if (digits == 0) return NULL;
        at += digits;
    }
    return at;
}

/* Returns the start of the value of the member `name` in a JSON object. If several members have this name, uses the last.
 * Returns NULL if no member has this name, or if `json` is not an object. */
static inline const char *hostler_json_member(const char *json, const char *name) {
    const char *at = hostler_json_space(json), *end = hostler_json_end(at, 64), *found = NULL;
    if (*at != '{' || !end || *hostler_json_space(end)) return NULL;
    char *key = malloc((size_t)(end - at));
    at = hostler_json_space(at + 1);
    while (key && *at != '}') {
        long size = hostler_json_read(&at, key);
        at = hostler_json_space(hostler_json_space(at) + 1);
        if ((size_t)size == strlen(name) && memcmp(key, name, (size_t)size) == 0) found = at;
        at = hostler_json_space(hostler_json_end(at, 64));
        at = hostler_json_space(at + (*at == ','));
    }
    free(key);
    return found;
}

/* Returns the text of the string member `name` in a JSON object, followed by a NUL. `json` must contain only the object.
 * Stores the size of the text in `*size` unless `size` is NULL. Returns NULL if `json` is not an object or has no string
 * member of this name. */
static inline char *hostler_json_string(const char *json, const char *name, size_t *size) {
    const char *value = hostler_json_member(json, name), *end = value;
    long length = value ? hostler_json_read(&end, NULL) : -1;
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (!text) return NULL;
    hostler_json_read(&value, text);
    text[length] = '\0';
    if (size) *size = (size_t)length;
    return text;
}

/* Decodes Base64 in place. Returns the size of the decoded bytes, or -1 if the text is invalid. */
static inline long hostler_base64(char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int count = 0;
    long size = 0;
    const char *at = text;

    for (; *at && *at != '='; at++) {
        const char *digit = strchr(digits, *at);
        if (!digit) return -1;
        bits = bits << 6 | (uint32_t)(digit - digits);
        count += 6;
        if (count >= 8) text[size++] = (char)(bits >> (count -= 8));
    }
    text[size] = '\0';
    return size;
}

/* Returns the text or the bytes of the attribute `name`, followed by a NUL. Stores their size in `*size` unless `size` is
 * NULL. Returns NULL if the message has no attribute of this name. */
static inline char *hostler_attribute(const char *name, size_t *size) {
    const char *attributes = getenv("MESSAGE_ATTRIBUTES");
    if (!attributes) return NULL;
    char *text = hostler_json_string(attributes, name, size);
    const char *value = text ? NULL : hostler_json_member(attributes, name), *end;
    if (!value || *value != '{') return text;
    /* A binary value is {"base64":"…"}. Copies this object, because the text after it belongs to other attributes. */
    end = hostler_json_end(value, 64);
    char *object = malloc((size_t)(end - value) + 1);
    if (!object) return NULL;
    memcpy(object, value, (size_t)(end - value));
    object[end - value] = '\0';
    char *bytes = hostler_json_string(object, "base64", NULL);
    free(object);
    long length = bytes ? hostler_base64(bytes) : -1;
    if (length < 0) return NULL;
    if (size) *size = (size_t)length;
    return bytes;
}

#endif
