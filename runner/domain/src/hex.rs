//! Bytes as hexadecimal digits.

use std::fmt::Write;

/// Two lower-case digits for each byte.
///
/// ```
/// assert_eq!(heddle_domain::hex(&[0, 0x7f, 0xff]), "007fff");
/// ```
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
