# Tests of the handler as a program: body in, reply and exit code out.
export MESSAGE_ID=test MESSAGE_CHANNEL={{name}} MESSAGE_ATTEMPT=1 MESSAGE_ATTRIBUTES='{}'
failed=0 passed=0

# expect BODY CODE REPLY
expect() {
  reply=$(printf '%s' "$1" | "$handler" 2>/dev/null) && code=0 || code=$?
  if [ "$code $reply" = "$2 $3" ]; then
    echo "ok      body '$1': exit code $code, reply '$reply'"
    passed=$((passed + 1))
  else
    echo "FAILED  body '$1': expected $2 '$3', got $code '$reply'" >&2
    failed=$((failed + 1))
  fi
}

handler=$1
expect '{"name": "Ada"}' 0 'Hello, Ada!'
expect '{"name": "Z\u00fcrich", "zip": [8000]}' 0 'Hello, Zürich!'
expect '' 65 ''
expect 'Ada' 65 ''
expect '{}' 65 ''
expect '{"name": 7}' 65 ''
expect '{"name": ""}' 65 ''
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
