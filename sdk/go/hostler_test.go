package hostler

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

type ended struct {
	code   int
	stdout string
	reason string
}

// runs calls run with a message with this body. Returns how the program would end.
func runs(t *testing.T, body string, handle func(Message) ([]byte, error)) ended {
	t.Helper()
	t.Setenv("MESSAGE_ID", "m-1")
	t.Setenv("MESSAGE_CHANNEL", "news.mobile")
	t.Setenv("MESSAGE_ATTEMPT", "2")
	t.Setenv("MESSAGE_ATTRIBUTES", `{"city":"Zürich 🚲","raw":{"base64":"AP8="}}`)
	var stdout, stderr bytes.Buffer
	code := run(handle, strings.NewReader(body), &stdout, &stderr)
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	return ended{code, stdout.String(), lines[len(lines)-1]}
}

func TestTheMessageArrives(t *testing.T) {
	var got Message
	runs(t, "\x00body\xff", func(message Message) ([]byte, error) { got = message; return nil, nil })
	want := Message{"m-1", "news.mobile", 2, []byte("\x00body\xff"),
		map[string]string{"city": "Zürich 🚲"}, map[string][]byte{"raw": {0, 255}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v", got)
	}
}

func TestErrorsAreOutcomes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want ended
	}{
		{nil, ended{0, "reply", ""}},
		{Retry, ended{75, "", "retry"}},
		{fmt.Errorf("the bank is away: %w", Retry), ended{75, "", "the bank is away: retry"}},
		{DeadLetter("row 3:\nno name"), ended{65, "", "row 3: no name"}},
		{fmt.Errorf("orders: %w", DeadLetter("no name")), ended{65, "", "no name"}},
		{errors.New("broken"), ended{1, "", "broken"}},
	} {
		got := runs(t, "", func(Message) ([]byte, error) { return []byte("reply"), c.err })
		if got != c.want {
			t.Errorf("%v: got %+v", c.err, got)
		}
	}
}

func TestAPanicGivesItsReason(t *testing.T) {
	got := runs(t, "", func(Message) ([]byte, error) { panic("no\nmore") })
	if (got != ended{70, "", "panic: no more"}) {
		t.Errorf("got %+v", got)
	}
}

func TestWhatIsNotRunByHostlerSaysSo(t *testing.T) {
	var stderr bytes.Buffer
	handle := func(Message) ([]byte, error) { t.Error("called"); return nil, nil }
	if code := run(handle, strings.NewReader(""), &stderr, &stderr); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if !strings.HasPrefix(stderr.String(), "MESSAGE_ATTEMPT: ") {
		t.Errorf("said %q", &stderr)
	}
}
