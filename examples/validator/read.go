package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

func known(name string) bool {
	for _, column := range schema {
		if column.name == name {
			return true
		}
	}
	return false
}

// readCSV reads RFC 4180: quotes, line breaks in quotes, either line end. The header gives the columns, in any order.
func readCSV(body []byte, checked *checked) {
	reader := csv.NewReader(bytes.NewReader(body))
	reader.FieldsPerRecord = -1
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return
	}
	if err != nil {
		syntax(err, checked)
		return
	}
	for i, name := range header {
		switch {
		case !known(name):
			checked.fault(1, name, "is not a column of an order")
		case index(header[:i], name) >= 0:
			checked.fault(1, name, "is there twice")
		}
	}
	for _, column := range schema {
		if !column.optional && index(header, column.name) < 0 {
			checked.fault(1, column.name, "is not in the header")
		}
	}
	// With columns that are not understood, every row would be wrong.
	if len(checked.faults) > 0 {
		return
	}
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		checked.rows++
		if err != nil {
			syntax(err, checked)
			return
		}
		line, _ := reader.FieldPos(0)
		if len(record) != len(header) {
			checked.fault(line, "", "%d values for %d columns", len(record), len(header))
			continue
		}
		values := map[string]string{}
		for i, name := range header {
			values[name] = record[i]
		}
		checked.order(line, values)
	}
}

func index(names []string, name string) int {
	for i := range names {
		if names[i] == name {
			return i
		}
	}
	return -1
}

// syntax reports what ends the reading: after it, nobody knows where a row begins.
func syntax(err error, checked *checked) {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		what := parse.Err.Error()
		switch {
		case errors.Is(parse.Err, csv.ErrQuote):
			what = "a quoted value is not closed, or goes on after its quote"
		case errors.Is(parse.Err, csv.ErrBareQuote):
			what = "a quote within a value that is not quoted"
		}
		checked.fault(parse.StartLine, "", "%s", what)
		return
	}
	checked.fault(1, "", "%s", err)
}

// readJSONLines reads an object a line; blank lines are no rows.
func readJSONLines(body []byte, checked *checked) {
	for i, text := range strings.Split(string(body), "\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		checked.rows++
		before := len(checked.faults)
		values := object(text, i+1, checked)
		if len(checked.faults) == before {
			checked.order(i+1, values)
		}
	}
}

// object reads one flat JSON object, member by member, so that a name that is there twice is seen. A number keeps its
// text; null is as if it were not there.
func object(text string, line int, checked *checked) map[string]string {
	values := map[string]string{}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if !json.Valid([]byte(text)) {
		checked.fault(line, "", "is not JSON")
		return nil
	}
	if start, _ := decoder.Token(); start != json.Delim('{') {
		checked.fault(line, "", "is not an object")
		return nil
	}
	for decoder.More() {
		name, _ := decoder.Token()
		key, _ := name.(string)
		var value any
		if err := decoder.Decode(&value); err != nil {
			checked.fault(line, key, "%s", err)
			return nil
		}
		if _, twice := values[key]; twice {
			checked.fault(line, key, "is there twice")
		}
		if !known(key) {
			checked.fault(line, key, "is not a column of an order")
		}
		switch value := value.(type) {
		case nil:
			values[key] = ""
		case string:
			values[key] = value
		case json.Number:
			values[key] = value.String()
		default:
			checked.fault(line, key, "is neither text nor a number")
		}
	}
	return values
}
