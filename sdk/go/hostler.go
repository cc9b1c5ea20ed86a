// Package hostler turns a Go program into a handler. Build the program with GOOS=wasip1 GOARCH=wasm:
//
//	func main() { hostler.Run(handle) }
//
//	func handle(message hostler.Message) (reply []byte, err error) { … }
//
// If handle returns no error, hostler acks the message. Otherwise, the error decides: [Retry], [DeadLetter] or any other
// error.
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

// Exit codes that hostler interprets (sysexits.h). Any other exit code means that the attempt failed.
const (
	exitFailed     = 1
	exitDeadLetter = 65
	exitPanicked   = 70
	exitRetry      = 75
)

// Message is one delivery of a message.
type Message struct {
	// ID is the same for all deliveries of the message. Use it as a key for work that must happen only once.
	ID string
	// Channel is the channel from which the message came: "<queue>" or "<exchange>.<queue>".
	Channel string
	// Attempt is the number of this delivery, counted by the queue. The first is 1.
	Attempt int
	Body    []byte
	// Attributes are the text attributes, by name.
	Attributes map[string]string
	// Binary are the binary attributes, by name.
	Binary map[string][]byte
}

// Retry requests another attempt. The consumer's retry policy decides whether and when. To add a reason, wrap the error:
// fmt.Errorf("the bank is away: %w", hostler.Retry).
var Retry = errors.New("retry")

type deadLetter string

func (reason deadLetter) Error() string { return string(reason) }

// DeadLetter returns the error for a message that can never be processed. hostler moves the message to the dead-letter
// queue, with this reason.
func DeadLetter(reason string) error { return deadLetter(reason) }

// Reason returns the reason of the [DeadLetter] in err. If err contains no DeadLetter, ok is false. For tests.
func Reason(err error) (reason string, ok bool) {
	var letter deadLetter
	ok = errors.As(err, &letter)
	return string(letter), ok
}

// Run passes the message to handle, and ends the program with the exit code for the result. Run does not return.
//
// Run writes a reply to standard output. If the consumer's config contains reply = "stdout", hostler sends the reply to
// the reply channel. Otherwise, hostler logs the reply. Run writes an error or a panic to the last line of standard error.
// hostler uses this line as the reason.
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

// line converts a text to one line, because hostler uses only the last line as the reason.
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

// attributes parses a JSON object. Each value is a text, or {"base64": "…"} for a binary attribute.
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
