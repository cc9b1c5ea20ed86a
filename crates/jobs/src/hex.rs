//! Bytes as hexadecimal digits.

/// Returns the bytes as lower-case digits, two each.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_is_two_digits() {
        assert_eq!(super::encode(&[0, 0x0f, 0xa0, 0xff]), "000fa0ff");
    }
}
