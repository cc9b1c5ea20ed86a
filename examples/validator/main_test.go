package main

import (
	"os"
	"strings"
	"testing"

	"hostler"
)

const header = "order_id,customer,sku,quantity,unit_price,currency,ordered_on,note\n"

func validate(contentType, body string) (string, error) {
	return reply(hostler.Message{Body: []byte(body), Attributes: map[string]string{"content-type": contentType}})
}

func reply(message hostler.Message) (string, error) {
	reply, err := handle(message)
	return string(reply), err
}

func TestTheSamplesAreTheSameOrders(t *testing.T) {
	const want = `{"orders":4,"totals":{"CHF":"90.00","EUR":"1324.70"},"first":"2026-11-02","last":"2026-11-21"}`
	for _, name := range []string{"orders.csv", "orders.jsonl"} {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := validate("", string(body)); got != want || err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestWhatCSVMayLookLike(t *testing.T) {
	const row = `AB-000001,"Ada ""the first"" Lovelace, Ltd.",X-1,2,0.5,EUR,2026-01-31,"two
lines"` + "\n"
	const want = `{"orders":1,"totals":{"EUR":"1.00"},"first":"2026-01-31","last":"2026-01-31"}`
	for name, body := range map[string]string{
		"plain":             header + row,
		"BOM":               "\ufeff" + header + row,
		"CRLF":              strings.ReplaceAll(header+row, "\n", "\r\n"),
		"no last line end":  strings.TrimSuffix(header+row, "\n"),
		"blank lines":       "\n" + header + "\n\n" + row + "\n",
		"another order":     "currency,quantity,unit_price,sku,ordered_on,order_id,customer\nEUR,2,0.50,X-1,2026-01-31,AB-000001,Ada\n",
		"quoted everywhere": "\"" + strings.ReplaceAll(strings.TrimSpace(header), ",", "\",\"") + "\"\n" + row,
	} {
		if got, err := validate("text/csv; charset=utf-8", body); got != want || err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestReasonsNameRowAndColumn(t *testing.T) {
	const good = "AB-000001,Ada,X-1,2,0.50,EUR,2026-01-31,\n"
	with := func(old, new string) string {
		return header + good + "\n" + strings.Replace(strings.Replace(good, "1,", "2,", 1), old, new, 1)
	}
	for _, c := range []struct{ body, want string }{
		{"", "the file has no orders"},
		{header, "the file has no orders"},
		{with(",2,", ",0,"), "row 2 (line 4), column `quantity`: `0` is not a whole number from 1 to 10000"},
		{with(",2,", ",2.0,"), "row 2 (line 4), column `quantity`: `2.0` is not a whole number from 1 to 10000"},
		{with("0.50", "0.505"), "row 2 (line 4), column `unit_price`: `0.505` is not a price from 0 to 999999.99 with at most two decimals"},
		{with("0.50", "-1"), "row 2 (line 4), column `unit_price`: `-1` is not a price from 0 to 999999.99 with at most two decimals"},
		{with("EUR", "eur"), "row 2 (line 4), column `currency`: `eur` is none of CHF, EUR, GBP, USD"},
		{with("01-31", "02-30"), "row 2 (line 4), column `ordered_on`: `2026-02-30` is not a date such as 2026-11-21"},
		{with("Ada", ""), "row 2 (line 4), column `customer`: is missing"},
		{with("AB-000002", "AB-000001"), "row 2 (line 4), column `order_id`: `AB-000001` is in row 1 already"},
		{with("Ada", strings.Repeat("ü", 101)), "row 2 (line 4), column `customer`: `" + strings.Repeat("ü", 40) + "…` is longer than 100 characters"},
		{with("Ada,", ""), "row 2 (line 4): 7 values for 8 columns"},
		{with("Ada", `"Ada`), "row 2 (line 4): a quoted value is not closed, or goes on after its quote"},
		{with("Ada", `A"da`), "row 2 (line 4): a quote within a value that is not quoted"},
		{with("Ada", "A\xffda"), "line 4: not UTF-8"},
		{with("Ada,X-1", ",x"), "row 2 (line 4), column `customer`: is missing (and 1 more)"},
		{strings.Replace(header, "sku", "SKU", 1) + good, "line 1, column `SKU`: is not a column of an order (and 1 more)"},
		{strings.Replace(header, "note", "sku", 1) + good, "line 1, column `sku`: is there twice"},
		{strings.Replace(header, ",currency", "", 1) + good, "line 1, column `currency`: is not in the header"},
	} {
		_, err := validate("text/csv", c.body)
		if got, _ := hostler.Reason(err); got != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.body, got, c.want)
		}
	}
}

func TestReasonsOfJSONLines(t *testing.T) {
	const good = `{"order_id":"AB-000001","customer":"Ada","sku":"X-1","quantity":2,"unit_price":0.50,"currency":"EUR","ordered_on":"2026-01-31","note":null}`
	with := func(old, new string) string { return "\n" + strings.Replace(good, old, new, 1) + "\r\n" }
	if got, err := validate("application/x-ndjson", with("", "")); err != nil {
		t.Errorf("%s, %v", got, err)
	}
	for _, c := range []struct{ body, want string }{
		{with("{", ""), "row 1 (line 2): is not JSON"},
		{"[1]", "row 1 (line 1): is not an object"},
		{with(":2,", ":2e0,"), "row 1 (line 2), column `quantity`: `2e0` is not a whole number from 1 to 10000"},
		{with(":2,", ":[2],"), "row 1 (line 2), column `quantity`: is neither text nor a number"},
		{with(`"sku"`, `"Sku"`), "row 1 (line 2), column `Sku`: is not a column of an order"},
		{with(`"sku":"X-1",`, ""), "row 1 (line 2), column `sku`: is missing"},
		{with("null", `"a","note":"b"`), "row 1 (line 2), column `note`: is there twice"},
	} {
		_, err := validate("application/jsonl", c.body)
		if got, _ := hostler.Reason(err); got != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.body, got, c.want)
		}
	}
}

func TestLargeSumsAreExact(t *testing.T) {
	var body strings.Builder
	body.WriteString(header)
	for i := 0; i < 12_000; i++ {
		body.WriteString(strings.Replace("AB-NNNNNN,A,X-1,10000,999999.99,EUR,2026-01-31,\n", "NNNNNN", pad(i), 1))
	}
	want := `{"orders":12000,"totals":{"EUR":"119999998800000.00"},"first":"2026-01-31","last":"2026-01-31"}`
	if got, err := validate("text/csv", body.String()); got != want || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func pad(number int) string {
	digits := []byte("000000")
	for at := 5; number > 0; at-- {
		digits[at] = byte('0' + number%10)
		number /= 10
	}
	return string(digits)
}
