// A batch handler in JavaScript: does with each message what its body says.
import { DeadLetter, Retry, done, lost } from "./hostler.js";

export async function handleBatch(messages) {
  return messages.map(answer); // promises
}

async function answer(message, index) {
  await undefined; // as a handler that has something to wait for
  switch (message.text()) {
    case "done":
      if (!done(index) || done(index) || lost(index)) return new Error("one early answer counts");
      return new Retry();
    case "never":
      return new DeadLetter("as told");
    case "error":
      return new Error("the disk is full");
    case "reply":
      return message.body;
  }
}
