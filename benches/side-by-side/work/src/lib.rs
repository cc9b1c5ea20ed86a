//! The work that every contender does on a message: parses its JSON body, adds up an array, hashes a text over and over,
//! and compares both with what the body says they come to. `peers/work.mjs` and `peers/work.py` do the same.

use serde::{Deserialize, Serialize};

/// How often the text is hashed.
pub const ROUNDS: u32 = 8;

/// The body of a message. Numbers stay below 2^32, so that every language computes alike.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// Which message it is.
    pub number: u32,
    /// What is added up.
    pub amounts: Vec<u32>,
    /// What is hashed.
    pub text: String,
    /// What both come to.
    pub check: u32,
}

impl Order {
    /// The sum and the hash (FNV-1a, 32 bits), each round going on from the last.
    pub fn compute(&self) -> u32 {
        let sum = self.amounts.iter().fold(0, |sum: u32, amount| sum.wrapping_add(*amount));
        (0..ROUNDS).fold(sum ^ 0x811c_9dc5, |hash, _| {
            self.text.bytes().fold(hash, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        })
    }
}

/// Whether the body is what it says.
pub fn holds(body: &[u8]) -> bool {
    serde_json::from_slice::<Order>(body).is_ok_and(|order| order.compute() == order.check)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_work_depends_on_all_of_the_body() {
        let body = r#"{"number":1,"amounts":[1,2],"text":"abc","check":CHECK}"#;
        let order = |text: &str| serde_json::from_str::<super::Order>(&text.replace("CHECK", "0"));
        let check = order(body).unwrap().compute().to_string();
        let right = body.replace("CHECK", &check);
        assert!(super::holds(right.as_bytes()));
        assert!(!super::holds(right.replace("abc", "abd").as_bytes()));
        assert!(!super::holds(right.replace("[1,", "[2,").as_bytes()));
    }
}
