//! Reads standard OpenTelemetry environment variables. Collects a warning for each invalid value, because the standard
//! requires programs to ignore such values.

/// Reads environment variables through the function `get`.
pub(super) struct Reader<F> {
    get: F,
    warnings: Vec<String>,
}

impl Reader<fn(&str) -> Option<String>> {
    /// Creates a reader of the environment variables of this process.
    pub(super) fn of_process() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    pub(super) fn new(get: F) -> Self {
        Self { get, warnings: Vec::new() }
    }

    /// Returns the value of a variable. An empty value counts as unset (OpenTelemetry specification, "Environment
    /// variables").
    pub(super) fn set(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    /// Calls `read` with each of the two names in turn. Returns the first value that `read` returns.
    pub(super) fn first<T>(&mut self, names: [&str; 2], read: impl Fn(&mut Self, &str) -> Option<T>) -> Option<T> {
        names.into_iter().find_map(|name| read(self, name))
    }

    /// Returns the value of a variable in lower case if it is one of `words`, ignoring case. Otherwise, returns `None`,
    /// and records a warning unless the variable is unset.
    pub(super) fn word(&mut self, name: &str, words: &[&str]) -> Option<String> {
        let value = self.set(name)?.to_ascii_lowercase();
        if words.contains(&value.as_str()) {
            return Some(value);
        }
        self.wrong(name, &value, &format!("one of {}", words.join(", ")));
        None
    }

    /// Returns the value of a variable if it is a whole number. Otherwise, returns `None`, and records a warning unless
    /// the variable is unset.
    pub(super) fn number(&mut self, name: &str) -> Option<u64> {
        let value = self.set(name)?;
        let number = value.trim().parse().ok();
        if number.is_none() {
            self.wrong(name, &value, "a whole number");
        }
        number
    }

    /// Records a warning that the value of a variable is ignored. `wanted` describes the valid values.
    pub(super) fn wrong(&mut self, name: &str, value: &str, wanted: &str) {
        self.warnings.push(format!("{name}: `{value}` is ignored: it must be {wanted}"));
    }

    /// Returns the warnings, for the log.
    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }
}
