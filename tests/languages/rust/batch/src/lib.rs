//! A batch handler: does with each message what its body says.

use hostler_guest::{Failure, Message, Outcome, batch, batch_handler};

#[batch_handler]
fn handle(messages: Vec<Message>) -> Vec<Result<Outcome, Failure>> {
    messages.iter().enumerate().map(|(index, message)| answer(index, message)).collect()
}

fn answer(index: usize, message: &Message) -> Result<Outcome, Failure> {
    match message.text()? {
        "done" => {
            assert!(batch::done(index, ()) && !batch::done(index, ()) && !batch::done(1_000, ()));
            Err(Failure::retry())
        }
        "panic" => panic!("as told"),
        "lost" => Err(Failure::error(format!("lost: {}", batch::lost(index)))),
        "reply" => Ok(Outcome::reply(message.id.clone())),
        "never" => Err(Failure::dead_letter("as told")),
        _ => Ok(Outcome::Ack),
    }
}
