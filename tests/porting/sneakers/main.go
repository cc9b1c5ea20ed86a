package main

import (
	"encoding/json"

	"example.com/statements-handler/hostler"
)

func main() { hostler.Run(balance) }

func balance(message hostler.Message) ([]byte, error) {
	var statement struct {
		Account string
		Lines   []struct{ Cents int64 }
	}
	if err := json.Unmarshal(message.Body, &statement); err != nil {
		return nil, hostler.DeadLetter(err.Error())
	}
	if statement.Account == "" || len(statement.Lines) == 0 {
		return nil, hostler.DeadLetter("the statement has no account, or no lines")
	}
	var cents int64
	for _, line := range statement.Lines {
		cents += line.Cents
	}
	return json.Marshal(map[string]any{"account": statement.Account, "cents": cents})
}
