// The validator checks a file of orders, CSV or JSON lines, and replies with a summary of it. A file with a fault is
// dead-lettered, and the reason names the row and the column.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"hostler"
)

// shown is how many faults of one file are logged; the reason names the first.
const shown = 20

func main() { hostler.Run(handle) }

func handle(message hostler.Message) ([]byte, error) {
	body := bytes.TrimPrefix(message.Body, []byte("\ufeff"))
	if at := invalid(body); at >= 0 {
		return nil, hostler.DeadLetter(fmt.Sprintf("line %d: not UTF-8", 1+bytes.Count(body[:at], []byte("\n"))))
	}
	read := readCSV
	if isJSONLines(message.Attributes["content-type"], body) {
		read = readJSONLines
	}
	checked := newChecked()
	read(body, checked)
	if checked.rows == 0 && len(checked.faults) == 0 {
		return nil, hostler.DeadLetter("the file has no orders")
	}
	switch faults := checked.faults; len(faults) {
	case 0:
		return json.Marshal(checked.summary())
	case 1:
		return nil, hostler.DeadLetter(faults[0].String())
	default:
		for i, fault := range faults {
			if i == shown {
				break
			}
			fmt.Fprintln(os.Stderr, fault)
		}
		return nil, hostler.DeadLetter(fmt.Sprintf("%s (and %d more)", faults[0], len(faults)-1))
	}
}

// invalid is where the first byte is that is not UTF-8, or -1.
func invalid(body []byte) int {
	for at := 0; at < len(body); {
		r, size := utf8.DecodeRune(body[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
	return -1
}

// isJSONLines goes by the content type, and where that says neither, by how the body begins.
func isJSONLines(contentType string, body []byte) bool {
	kind, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	switch strings.TrimSpace(kind) {
	case "text/csv":
		return false
	case "application/jsonl", "application/x-ndjson", "application/x-jsonlines":
		return true
	default:
		return bytes.HasPrefix(bytes.TrimSpace(body), []byte("{"))
	}
}
