import { DeadLetter, Delay } from "./hostler.js";

const MAIL_API = "https://mail.example.com/messages";

export default async function welcome(message) {
  const { email, name } = message.json();
  if (!email) throw new DeadLetter("no email");
  const answer = await fetch(MAIL_API, {
    method: "POST",
    headers: { "content-type": "application/json", "idempotency-key": message.id },
    body: JSON.stringify({ to: email, subject: `Welcome, ${name}` }),
  });
  if (answer.status === 429) throw new Delay(60);
  if (!answer.ok) throw new Error(`the mail API said ${answer.status}`);
}
