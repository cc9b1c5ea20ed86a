//! The locale that is active. A sandbox runs one message at a time, so one place is enough.

use std::cell::Cell;

use receipt::Locale;

thread_local! {
    static ACTIVE: Cell<Locale> = Cell::default();
}

/// Makes it this one.
pub fn set(locale: Locale) {
    ACTIVE.set(locale);
}

/// The active locale.
pub fn get() -> Locale {
    ACTIVE.get()
}
