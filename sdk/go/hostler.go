// Package hostler makes a handler of a Go program that is built with GOOS=wasip1 GOARCH=wasm:
//
//	func main() { hostler.Run(handle) }
//
//	func handle(message hostler.Message) (reply []byte, err error) { … }
//
// No error acks the message; [Retry], [DeadLetter] and any other error say what is to become of it instead.
package hostler

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// The exit codes that hostler knows (sysexits.h); any other means that the attempt failed.
const (
	exitFailed     = 1
	exitDeadLetter = 65
	exitPanicked   = 70
	exitRetry      = 75
)

// Message is one delivery of a message.
type Message struct {
	// ID is the same at every delivery, so a key for work that must happen once.
	ID string
	// Channel is where the message came from: "<queue>" or "<exchange>.<queue>".
	Channel string
	// Attempt counts the deliveries of this message; 1 is the first.
	Attempt int
	Body    []byte
	// Attributes are those with a text, by name.
	Attributes map[string]string
	// Binary are the attributes with bytes, by name.
	Binary map[string][]byte
}

// Retry asks for another attempt, as the consumer's retry policy says. Wrap it to give a reason:
// fmt.Errorf("the bank is away: %w", hostler.Retry).
var Retry = errors.New("retry")

type deadLetter string

func (reason deadLetter) Error() string { return string(reason) }

// DeadLetter says that the message can never be processed: it goes to the dead-letter queue, with this reason.
func DeadLetter(reason string) error { return deadLetter(reason) }

// Reason is what a [DeadLetter] in err gives as its reason; ok says whether there is one. It is for tests.
func Reason(err error) (reason string, ok bool) {
	var letter deadLetter
	ok = errors.As(err, &letter)
	return string(letter), ok
}

// Run gives the message to handle, and ends the program with what handle says; it does not return.
//
// A reply goes to standard output: with reply = "stdout" in the consumer's config it is sent to the reply channel, and
// without, it is logged. Errors and panics go to standard error, on its last line, which hostler takes as the reason.
func Run(handle func(Message) (reply []byte, err error)) {
	os.Exit(run(handle, os.Stdin, os.Stdout, os.Stderr))
}

func run(handle func(Message) ([]byte, error), stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if cause := recover(); cause != nil {
			fmt.Fprintf(stderr, "%s\npanic: %s\n", debug.Stack(), line(fmt.Sprint(cause)))
			code = exitPanicked
		}
	}()
	message, err := receive(stdin)
	var reply []byte
	if err == nil {
		reply, err = handle(message)
	}
	if err == nil {
		_, err = stdout.Write(reply)
	}
	if err == nil {
		return 0
	}
	reason, dead := Reason(err)
	if !dead {
		reason = err.Error()
	}
	fmt.Fprintln(stderr, line(reason))
	switch {
	case dead:
		return exitDeadLetter
	case errors.Is(err, Retry):
		return exitRetry
	default:
		return exitFailed
	}
}

// line makes one line of a text, as hostler takes the last line for the reason.
func line(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}

func receive(stdin io.Reader) (Message, error) {
	message := Message{
		ID:         os.Getenv("MESSAGE_ID"),
		Channel:    os.Getenv("MESSAGE_CHANNEL"),
		Attributes: map[string]string{},
		Binary:     map[string][]byte{},
	}
	var err error
	if message.Attempt, err = strconv.Atoi(os.Getenv("MESSAGE_ATTEMPT")); err != nil {
		return message, fmt.Errorf("MESSAGE_ATTEMPT: %w", err)
	}
	if err := message.attributes(os.Getenv("MESSAGE_ATTRIBUTES")); err != nil {
		return message, fmt.Errorf("MESSAGE_ATTRIBUTES: %w", err)
	}
	message.Body, err = io.ReadAll(stdin)
	return message, err
}

// attributes reads a JSON object of texts, and of {"base64": "…"} for bytes.
func (message *Message) attributes(text string) error {
	var values map[string]any
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return err
	}
	for name, value := range values {
		switch value := value.(type) {
		case string:
			message.Attributes[name] = value
		case map[string]any:
			encoded, _ := value["base64"].(string)
			bytes, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			message.Binary[name] = bytes
		}
	}
	return nil
}
