//! Numbers as pages show them.

/// With a comma for each thousand: `12,345`.
pub(crate) fn number(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if n < 0 { format!("-{text}") } else { text }
}

/// A number that was counted up to `most`: `1,000+`.
pub(crate) fn capped(n: i64, most: i64) -> String {
    format!("{}{}", number(n.min(most)), if n >= most { "+" } else { "" })
}
