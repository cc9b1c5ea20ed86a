import { DeadLetter } from "./hostler.js";

export default async function greet(message) {
  let body;
  try {
    body = message.json();
  } catch {
    // Checked below.
  }
  if (typeof body?.name !== "string") throw new DeadLetter('the body is not a JSON object with a text "name"');
  return `Hello, ${body.name}!`;
}
