import assert from "node:assert/strict";
import test from "node:test";

import { DeadLetter, Message } from "./hostler.js";
import greet from "./index.js";

test("greets by name", async () => {
  assert.equal(await greet(new Message({ body: '{"name": "Ada"}' })), "Hello, Ada!");
});

test("dead-letters what has no name", async () => {
  for (const body of ["hello", "[1]", "null", "{}", '{"name": 1}', Uint8Array.of(0xff)]) {
    await assert.rejects(greet(new Message({ body })), DeadLetter);
  }
});
