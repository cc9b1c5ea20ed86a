/* CSV to JSON lines, in a stream: the body is read piece by piece, checked against its SHA-256, and written as a file
 * `<message id>.jsonl` into a granted folder. The reply says how much that was. */
#include <errno.h>

#include "csv.h"
#include "hostler.h"
#include "sha256.h"

struct etl {
    FILE *out;
    struct csv csv;
    struct sha256 sha;
    char **names; /* of the columns, as JSON strings */
    size_t columns, rows, body, written;
};

static void put(struct etl *etl, const char *bytes, size_t size) {
    etl->written += size;
    fwrite(bytes, 1, size, etl->out); /* the file's error flag is looked at in the end */
}

/* Writes a JSON string; `bytes` are UTF-8. */
static void put_string(struct etl *etl, const char *bytes, size_t size) {
    put(etl, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        char escaped[8] = {'\\', (char)byte};
        size_t length = 2;
        if (byte == '\n') escaped[1] = 'n';
        else if (byte == '\r') escaped[1] = 'r';
        else if (byte == '\t') escaped[1] = 't';
        else if (byte < 0x20) length = (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        else if (byte != '"' && byte != '\\') length = 0;
        if (length > 0) put(etl, escaped, length);
        else put(etl, bytes + i, 1);
    }
    put(etl, "\"", 1);
}

static int header(struct etl *etl) {
    struct csv *csv = &etl->csv;
    etl->columns = csv->count;
    etl->names = calloc(csv->count, sizeof *etl->names);
    if (!etl->names) return hostler_fail("no memory is left");
    for (size_t i = 0; i < csv->count; i++) {
        const struct csv_field *field = &csv->fields[i];
        const char *name = csv->text + field->from;
        if (field->size == 0 || memchr(name, '\0', field->size)) {
            return hostler_dead_letter("line %zu, column %zu: it has no name that can be used", csv->line, i + 1);
        }
        etl->names[i] = strndup(name, field->size);
        if (!etl->names[i]) return hostler_fail("no memory is left");
        for (size_t j = 0; j < i; j++) {
            if (strcmp(etl->names[i], etl->names[j]) == 0) {
                return hostler_dead_letter("line %zu, column %zu: `%s` is there twice", csv->line, i + 1, etl->names[i]);
            }
        }
    }
    return 0;
}

/* One row is one object: texts, and null for what is empty and not quoted. */
static int row(struct etl *etl) {
    struct csv *csv = &etl->csv;
    if (csv->number == 1) return header(etl);
    if (csv->count != etl->columns) {
        return hostler_dead_letter("row %zu (line %zu): %zu values for %zu columns", csv->number - 1, csv->line, csv->count, etl->columns);
    }
    etl->rows++;
    for (size_t i = 0; i < csv->count; i++) {
        const struct csv_field *field = &csv->fields[i];
        put(etl, i == 0 ? "{" : ",", 1);
        put_string(etl, etl->names[i], strlen(etl->names[i]));
        put(etl, ":", 1);
        if (field->size == 0 && !field->quoted) put(etl, "null", 4);
        else put_string(etl, csv->text + field->from, field->size);
    }
    put(etl, "}\n", 2);
    return 0;
}

static int answered(struct etl *etl, enum csv_answer answer) {
    struct csv *csv = &etl->csv;
    if (answer == CSV_MORE) return 0;
    if (answer == CSV_ROW) return row(etl);
    size_t column = csv->count < 1 ? 1 : csv->count;
    /* The row that is not complete yet comes after `number` others, the header among them. */
    if (csv->number == 0) return hostler_dead_letter("line %zu, column %zu: %s", csv->line, column, csv->fault);
    if (column > etl->columns) return hostler_dead_letter("row %zu (line %zu), column %zu: %s", csv->number, csv->line, column, csv->fault);
    return hostler_dead_letter("row %zu (line %zu), column `%s`: %s", csv->number, csv->line, etl->names[column - 1], csv->fault);
}

static int transform(struct etl *etl) {
    static char piece[64 * 1024];
    size_t got;
    int code;
    csv_start(&etl->csv);
    sha256_start(&etl->sha);
    while ((got = fread(piece, 1, sizeof piece, stdin)) > 0) {
        sha256_add(&etl->sha, piece, got);
        etl->body += got;
        for (size_t i = 0; i < got; i++) {
            if ((code = answered(etl, csv_byte(&etl->csv, piece[i]))) != 0) return code;
        }
    }
    if (ferror(stdin)) return hostler_fail("cannot read the body");
    if ((code = answered(etl, csv_end(&etl->csv))) != 0) return code;
    if (etl->csv.number == 0) return hostler_dead_letter("the body is empty");
    return 0;
}

int main(void) {
    static struct etl etl;
    const char *folder = getenv("OUT"), *id = getenv("MESSAGE_ID"), *expected = hostler_attribute("sha256", NULL);
    char path[512], unfinished[520], sum[65];
    int size = snprintf(path, sizeof path, "%s/%s.jsonl", folder ? folder : "/out", id ? id : "none");
    if (size < 0 || (size_t)size >= sizeof path) return hostler_fail("the path of the file is too long");
    snprintf(unfinished, sizeof unfinished, "%s.part", path);

    /* A name of its own until it is complete: whoever looks into the folder sees whole files only, and a second delivery
     * replaces what the first has left. */
    etl.out = fopen(unfinished, "wb");
    if (!etl.out) return hostler_fail("cannot write %s: %s", unfinished, strerror(errno));
    int code = transform(&etl);
    sha256_end(&etl.sha, sum);
    if (code == 0 && expected && strcmp(expected, sum) != 0) {
        code = hostler_dead_letter("the body has the SHA-256 %s, the attribute says %s", sum, expected);
    }
    int broken = ferror(etl.out);
    if ((fclose(etl.out) != 0 || broken) && code == 0) code = hostler_fail("cannot write %s", unfinished);
    if (code == 0 && rename(unfinished, path) != 0) code = hostler_fail("cannot rename %s: %s", unfinished, strerror(errno));
    if (code != 0) {
        remove(unfinished);
        return code;
    }
    printf("{\"file\":\"%s\",\"rows\":%zu,\"read\":%zu,\"written\":%zu,\"sha256\":\"%s\"}", strrchr(path, '/') + 1, etl.rows, etl.body,
           etl.written, sum);
    return HOSTLER_ACK;
}
