import { DeadLetter, type Message } from "./hostler.js";

export default async function greet(message: Message): Promise<string> {
  let body: unknown;
  try {
    body = message.json();
  } catch {
    // Checked below.
  }
  if (!isGuest(body)) throw new DeadLetter('the body is not a JSON object with a text "name"');
  return `Hello, ${body.name}!`;
}

function isGuest(body: unknown): body is { name: string } {
  return typeof body === "object" && body !== null && "name" in body && typeof body.name === "string";
}
