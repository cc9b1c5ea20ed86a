import { DeadLetter } from "./hostler.js";

export default async function greet(message) {
  let body;
  try {
    body = message.json();
  } catch {
    // It is judged below.
  }
  if (typeof body?.name !== "string") throw new DeadLetter('the body is no JSON object with a text "name"');
  return `Hello, ${body.name}!`;
}
