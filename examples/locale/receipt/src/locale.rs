//! The locales that there are, and how each writes.

use std::fmt;

/// A locale that receipts can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locale {
    /// English, which also stands in for what is not known.
    #[default]
    English,
    /// German.
    German,
    /// French.
    French,
}

impl Locale {
    /// The one that a tag names, by its language alone: `de-CH` is German, and what is not known is English.
    #[must_use]
    pub fn of(tag: Option<&str>) -> Self {
        let tag = tag.unwrap_or_default().to_ascii_lowercase();
        match tag.split(['-', '_']).next() {
            Some("de") => Self::German,
            Some("fr") => Self::French,
            _ => Self::English,
        }
    }

    /// The line of a receipt.
    #[must_use]
    pub fn line(self, name: &str, cents: u64) -> String {
        match self {
            Self::English => format!("Thank you, {name}: {}", money(cents, ',', '.')),
            Self::German => format!("Danke, {name}: {}", money(cents, '.', ',')),
            Self::French => format!("Merci, {name} : {}", money(cents, '\u{202f}', ',')),
        }
    }
}

impl fmt::Display for Locale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::English => "en",
            Self::German => "de",
            Self::French => "fr",
        })
    }
}

/// With this mark between thousands, and this one before the cents.
fn money(cents: u64, thousands: char, decimal: char) -> String {
    let whole = (cents / 100).to_string();
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(thousands);
        }
        text.push(digit);
    }
    format!("{text}{decimal}{:02}", cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_a_locale_and_a_locale_its_tag() {
        for (tag, locale) in [("de", "de"), ("de-CH", "de"), ("FR_fr", "fr"), ("en", "en"), ("nl", "en"), ("", "en")] {
            assert_eq!(Locale::of(Some(tag)).to_string(), locale, "{tag}");
        }
        assert_eq!(Locale::of(None), Locale::English);
    }

    #[test]
    fn each_writes_in_its_own_way() {
        assert_eq!(Locale::English.line("Ada", 123_456_705), "Thank you, Ada: 1,234,567.05");
        assert_eq!(Locale::German.line("Ada", 123_450), "Danke, Ada: 1.234,50");
        assert_eq!(Locale::French.line("Ada", 123_450), "Merci, Ada : 1\u{202f}234,50");
        assert_eq!(Locale::English.line("Ada", 7), "Thank you, Ada: 0.07");
    }
}
