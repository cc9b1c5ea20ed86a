# Tests of the handler as a program: body in, reply and exit code out.
export MESSAGE_ID=test MESSAGE_CHANNEL={{name}} MESSAGE_ATTEMPT=1 MESSAGE_ATTRIBUTES='{}'
failed=0

# expect BODY CODE REPLY
expect() {
  reply=$(printf '%s' "$1" | "$handler" 2>/dev/null) && code=0 || code=$?
  [ "$code $reply" = "$2 $3" ] || { echo "$1: expected $2 $3, got $code $reply" >&2; failed=1; }
}

handler=$1
expect '{"name": "Ada"}' 0 'Hello, Ada!'
expect '{"name": "Z\u00fcrich", "zip": [8000]}' 0 'Hello, Zürich!'
expect '' 65 ''
expect 'Ada' 65 ''
expect '{}' 65 ''
expect '{"name": 7}' 65 ''
expect '{"name": ""}' 65 ''
exit $failed
