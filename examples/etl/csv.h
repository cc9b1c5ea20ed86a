/* CSV (RFC 4180) as a stream: bytes go in, whole rows come out. A row is either line end, or the end of the input; quotes
 * may hold commas, line ends and doubled quotes; blank lines and a byte order mark are no rows. Text has to be UTF-8. */
#ifndef CSV_H
#define CSV_H

#include <stdlib.h>
#include <string.h>

struct csv_field {
    size_t from, size; /* in `text` of the row */
    int quoted;
};

struct csv {
    /* The row: its fields, and the line that it begins on. `number` counts from 1. */
    struct csv_field *fields;
    size_t count, number, line;
    char *text;
    const char *fault; /* what is wrong with it */
    /* The rest is the parser's own. */
    size_t fields_room, size, room, at_line;
    size_t marked; /* bytes of a byte order mark so far */
    enum { CSV_START, CSV_PLAIN, CSV_QUOTED, CSV_QUOTE, CSV_RETURN } state;
    unsigned char low, high; /* what the next byte of a character may be */
    int left;                /* bytes of the character to come */
    int row_is_over;
};

enum csv_answer { CSV_MORE, CSV_ROW, CSV_FAULT };

static inline enum csv_answer csv_fail(struct csv *csv, const char *fault) {
    csv->fault = fault;
    return CSV_FAULT;
}

static inline void csv_start(struct csv *csv) {
    memset(csv, 0, sizeof *csv);
    csv->at_line = 1;
}

/* Grows an array to hold one more; 0 if there is no memory. */
static inline int csv_room(void **array, size_t *room, size_t count, size_t item) {
    if (count < *room) return 1;
    size_t larger = *room ? 2 * *room : 256;
    void *grown = realloc(*array, larger * item);
    if (!grown) return 0;
    *array = grown;
    *room = larger;
    return 1;
}

static inline int csv_put(struct csv *csv, char byte) {
    if (!csv_room((void **)&csv->text, &csv->room, csv->size, 1)) return 0;
    csv->text[csv->size++] = byte;
    return 1;
}

static inline int csv_begin_field(struct csv *csv) {
    if (!csv_room((void **)&csv->fields, &csv->fields_room, csv->count, sizeof *csv->fields)) return 0;
    csv->fields[csv->count++] = (struct csv_field){.from = csv->size};
    csv->state = CSV_START;
    return 1;
}

static inline void csv_end_field(struct csv *csv) {
    struct csv_field *field = &csv->fields[csv->count - 1];
    field->size = csv->size - field->from;
}

/* Whether the bytes so far can be UTF-8: no stray or missing bytes, no longer forms, no surrogates, no more than U+10FFFF. */
static inline int csv_utf8(struct csv *csv, unsigned char byte) {
    if (csv->left > 0) {
        if (byte < csv->low || byte > csv->high) return 0;
        csv->left--;
    } else if (byte >= 0x80) {
        if (byte < 0xc2 || byte > 0xf4) return 0;
        csv->left = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        csv->low = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
        csv->high = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
        return 1;
    }
    csv->low = 0x80;
    csv->high = 0xbf;
    return 1;
}

static inline enum csv_answer csv_end_row(struct csv *csv) {
    csv_end_field(csv);
    csv->row_is_over = 1;
    if (csv->count == 1 && csv->fields[0].size == 0 && !csv->fields[0].quoted) return CSV_MORE; /* a blank line */
    csv->number++;
    return CSV_ROW;
}

static inline enum csv_answer csv_take(struct csv *csv, char byte) {
    if (csv->count == 0 || csv->row_is_over) {
        csv->row_is_over = 0;
        csv->count = csv->size = 0;
        csv->line = csv->at_line;
        if (!csv_begin_field(csv)) return csv_fail(csv, "no memory is left");
    }
    if (!csv_utf8(csv, (unsigned char)byte)) return csv_fail(csv, "not UTF-8");
    if (byte == '\n') csv->at_line++;

    struct csv_field *field = &csv->fields[csv->count - 1];
    switch (csv->state) {
    case CSV_QUOTED:
        if (byte == '"') {
            csv->state = CSV_QUOTE;
            return CSV_MORE;
        }
        break;
    case CSV_RETURN:
        if (byte != '\n') return csv_fail(csv, "a carriage return without a line feed");
        return csv_end_row(csv);
    case CSV_START:
        if (byte == '"') {
            field->quoted = 1;
            csv->state = CSV_QUOTED;
            return CSV_MORE;
        }
        csv->state = CSV_PLAIN;
        /* fall through */
    case CSV_PLAIN:
    case CSV_QUOTE:
        if (byte == '\n') return csv_end_row(csv);
        if (byte == '\r') {
            csv->state = CSV_RETURN;
            return CSV_MORE;
        }
        if (byte == ',') {
            csv_end_field(csv);
            return csv_begin_field(csv) ? CSV_MORE : csv_fail(csv, "no memory is left");
        }
        if (csv->state == CSV_QUOTE) {
            if (byte != '"') return csv_fail(csv, "text after the quote that ends a value");
            csv->state = CSV_QUOTED;
        } else if (byte == '"') {
            return csv_fail(csv, "a quote within a value that is not quoted");
        }
    }
    return csv_put(csv, byte) ? CSV_MORE : csv_fail(csv, "no memory is left");
}

/* Takes the next byte. After CSV_ROW the row is there until the next call; after CSV_FAULT it is over. */
static inline enum csv_answer csv_byte(struct csv *csv, char byte) {
    static const char mark[] = "\xef\xbb\xbf";
    if (csv->marked == 3) return csv_take(csv, byte);
    if (byte == mark[csv->marked]) {
        csv->marked++;
        return CSV_MORE;
    }
    /* Not the mark, but a text that begins like it. */
    size_t held = csv->marked;
    csv->marked = 3;
    for (size_t i = 0; i < held; i++) {
        if (csv_take(csv, mark[i]) == CSV_FAULT) return CSV_FAULT;
    }
    return csv_take(csv, byte);
}

/* There are no more bytes: the last row, if it had no line end. */
static inline enum csv_answer csv_end(struct csv *csv) {
    if (csv->count == 0) csv->line = csv->at_line;
    if (csv->marked == 1 || csv->marked == 2 || csv->left > 0) return csv_fail(csv, "not UTF-8");
    if (csv->count == 0 || csv->row_is_over) return CSV_MORE;
    if (csv->state == CSV_QUOTED) return csv_fail(csv, "a quoted value is not closed");
    if (csv->state == CSV_RETURN) return csv_fail(csv, "a carriage return without a line feed");
    return csv_end_row(csv);
}

#endif
