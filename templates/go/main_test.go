package main

import (
	"testing"

	"example.com/{{name}}-handler/hostler"
)

func TestGreets(t *testing.T) {
	reply, err := handle(hostler.Message{Body: []byte(`{"name": "Ada"}`)})
	if err != nil || string(reply) != "Hello, Ada!" {
		t.Errorf("got %q, %v", reply, err)
	}
}

func TestDeadLettersWhatItCannotRead(t *testing.T) {
	for _, body := range []string{"", "Ada", "{}", `{"name": 7}`} {
		_, err := handle(hostler.Message{Body: []byte(body)})
		if reason, ok := hostler.Reason(err); !ok || reason == "" {
			t.Errorf("%q: got %v", body, err)
		}
	}
}
