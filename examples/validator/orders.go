package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A column of the schema. check says what is wrong with a value, or nothing.
type column struct {
	name     string
	optional bool
	check    func(value string) string
}

// The schema of an order.
var schema = []column{
	{name: "order_id", check: matches(`[A-Z]{2}-[0-9]{6}`, "of the form AB-123456")},
	{name: "customer", check: text(100)},
	{name: "sku", check: matches(`[A-Z0-9-]{3,20}`, "3 to 20 of A-Z, 0-9 and -")},
	{name: "quantity", check: between(1, 10_000)},
	{name: "unit_price", check: func(value string) string { _, wrong := cents(value); return wrong }},
	{name: "currency", check: oneOf("CHF", "EUR", "GBP", "USD")},
	{name: "ordered_on", check: date},
	{name: "note", optional: true, check: text(500)},
}

func matches(pattern, form string) func(string) string {
	whole := regexp.MustCompile(`^(?:` + pattern + `)$`)
	return func(value string) string {
		if whole.MatchString(value) {
			return ""
		}
		return "is not " + form
	}
}

func text(most int) func(string) string {
	return func(value string) string {
		if utf8.RuneCountInString(value) <= most {
			return ""
		}
		return fmt.Sprintf("is longer than %d characters", most)
	}
}

func between(least, most int) func(string) string {
	return func(value string) string {
		if number, err := strconv.Atoi(value); err == nil && number >= least && number <= most {
			return ""
		}
		return fmt.Sprintf("is not a whole number from %d to %d", least, most)
	}
}

func oneOf(values ...string) func(string) string {
	return func(value string) string {
		for _, known := range values {
			if value == known {
				return ""
			}
		}
		return "is none of " + strings.Join(values, ", ")
	}
}

func date(value string) string {
	if _, err := time.Parse(time.DateOnly, value); err != nil {
		return "is not a date such as 2026-11-21"
	}
	return ""
}

var price = regexp.MustCompile(`^(?:0|[1-9][0-9]{0,5})(?:\.([0-9]{1,2}))?$`)

// cents reads a price exactly: no floating point, and at most 999999.99, so that the sum of a file cannot overflow.
func cents(value string) (int64, string) {
	parts := price.FindStringSubmatch(value)
	if parts == nil {
		return 0, "is not a price from 0 to 999999.99 with at most two decimals"
	}
	whole, _, _ := strings.Cut(value, ".")
	number, _ := strconv.ParseInt(whole+(parts[1] + "00")[:2], 10, 64)
	return number, ""
}

// A fault of a file; column is empty where the row as a whole is wrong.
type fault struct {
	row, line int
	column    string
	what      string
}

func (fault fault) String() string {
	place := fmt.Sprintf("line %d", fault.line)
	if fault.row > 0 {
		place = fmt.Sprintf("row %d (line %d)", fault.row, fault.line)
	}
	if fault.column != "" {
		place += fmt.Sprintf(", column `%s`", fault.column)
	}
	return place + ": " + fault.what
}

// What has been found in a file so far.
type checked struct {
	rows        int
	faults      []fault
	seen        map[string]int
	totals      map[string]int64
	first, last string
}

func newChecked() *checked {
	return &checked{seen: map[string]int{}, totals: map[string]int64{}}
}

func (checked *checked) fault(line int, column, format string, values ...any) {
	checked.faults = append(checked.faults, fault{checked.rows, line, column, fmt.Sprintf(format, values...)})
}

// order checks the next row, which begins on this line.
func (checked *checked) order(line int, values map[string]string) {
	before := len(checked.faults)
	for _, column := range schema {
		value := values[column.name]
		switch {
		case value == "" && !column.optional:
			checked.fault(line, column.name, "is missing")
		case value != "":
			if wrong := column.check(value); wrong != "" {
				checked.fault(line, column.name, "`%s` %s", short(value), wrong)
			}
		}
	}
	if id := values["order_id"]; id != "" {
		if row, known := checked.seen[id]; known {
			checked.fault(line, "order_id", "`%s` is in row %d already", short(id), row)
		} else {
			checked.seen[id] = checked.rows
		}
	}
	if len(checked.faults) > before {
		return
	}
	quantity, _ := strconv.ParseInt(values["quantity"], 10, 64)
	unit, _ := cents(values["unit_price"])
	checked.totals[values["currency"]] += quantity * unit
	day := values["ordered_on"]
	if checked.first == "" || day < checked.first {
		checked.first = day
	}
	if day > checked.last {
		checked.last = day
	}
}

// short keeps a reason short.
func short(value string) string {
	const most = 40
	if runes := []rune(value); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return value
}

type summary struct {
	Orders int               `json:"orders"`
	Totals map[string]string `json:"totals"`
	First  string            `json:"first"`
	Last   string            `json:"last"`
}

func (checked *checked) summary() summary {
	totals := map[string]string{}
	for currency, cents := range checked.totals {
		totals[currency] = fmt.Sprintf("%d.%02d", cents/100, cents%100)
	}
	return summary{checked.rows, totals, checked.first, checked.last}
}
