use hostler_guest::{Failure, Message, Outgoing, handler};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Reservation {
    article: String,
    quantity: i64,
}

#[derive(Serialize)]
struct Pick {
    article: String,
    quantity: i64,
}

#[handler]
fn reserve(message: Message) -> Result<(), Failure> {
    let Reservation { article, quantity } = message.json()?;
    if quantity <= 0 {
        return Err(Failure::dead_letter("the quantity is not positive"));
    }
    let pick = serde_json::to_vec(&Pick { article, quantity })?;
    Outgoing::to("picking", pick).attribute("content-type", "application/json").send()?;
    Ok(())
}
