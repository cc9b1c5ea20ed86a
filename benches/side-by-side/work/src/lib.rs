//! Work that every contender does on a message: parses the JSON body, sums an array, hashes a text repeatedly, and compares the
//! result with the check value in the body. `peers/work.mjs` and `peers/work.py` do the same.

use serde::{Deserialize, Serialize};

/// Number of times that the text is hashed.
pub const ROUNDS: u32 = 8;

/// Body of a message. Numbers are below 2^32, so that all languages compute the same result.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// Number of the message.
    pub number: u32,
    /// Numbers to sum.
    pub amounts: Vec<u32>,
    /// Text to hash.
    pub text: String,
    /// Expected result.
    pub check: u32,
}

impl Order {
    /// Computes the sum and the hash (FNV-1a, 32 bits). Each round continues from the previous one.
    pub fn compute(&self) -> u32 {
        let sum = self.amounts.iter().fold(0, |sum: u32, amount| sum.wrapping_add(*amount));
        (0..ROUNDS).fold(sum ^ 0x811c_9dc5, |hash, _| {
            self.text.bytes().fold(hash, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        })
    }
}

/// Returns true if the body has the correct check value.
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
