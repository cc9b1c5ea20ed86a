//! Extracts the reason for a failure from a program's standard error. The reason is the message of a panic, or the last
//! line.

/// Returns the reason for a program's failure from its standard error. `None`: the program wrote nothing.
pub(super) fn last_words(stderr: &str) -> Option<String> {
    rust_panic(stderr).or_else(|| go_panic(stderr)).or_else(|| last_line(stderr))
}

/// Finds the message of a Rust panic and returns `panicked at PLACE: MESSAGE`. Rust writes the line `thread 'NAME'
/// panicked at PLACE:`, then the lines of the message, and then a note.
fn rust_panic(stderr: &str) -> Option<String> {
    let start = stderr.rfind("' panicked at ").or_else(|| stderr.rfind(") panicked at "))?;
    stderr[..start].rfind("thread '")?;
    let mut lines = stderr[start..].lines();
    let place = lines.next()?.get(2..)?;
    let mut words = vec![place];
    let end = lines.by_ref().find(|line| {
        let is_over = line.starts_with("note: ") || line.starts_with("stack backtrace:");
        words.extend(Some(line.trim()).filter(|line| !line.is_empty() && !is_over));
        is_over
    });
    // If there is text after the note, the program continued after the panic.
    let goes_on = end.is_some_and(|line| line.starts_with("note: ")) && lines.any(|line| !line.trim().is_empty());
    (!goes_on).then(|| words.join(" "))
}

/// Finds `panic: MESSAGE` or `fatal error: MESSAGE`. Go writes this line before the stacks of its goroutines.
fn go_panic(stderr: &str) -> Option<String> {
    let is_start = |line: &&str| line.starts_with("panic: ") || line.starts_with("fatal error: ");
    let start = stderr.lines().rev().find(is_start)?;
    let goes_on = stderr.contains("\ngoroutine ") || stderr.trim_end().ends_with(start);
    goes_on.then(|| start.trim_end().to_owned())
}

/// Returns the last line with text, which usually gives the reason for a failure. Skips the frames of a JavaScript stack.
fn last_line(stderr: &str) -> Option<String> {
    let lines = || stderr.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| !line.starts_with("at ")).or_else(|| lines().next()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stderr: &str) -> Option<String> {
        last_words(stderr)
    }

    #[test]
    fn the_message_of_a_panic_is_found_between_what_surrounds_it() {
        let rust = "log\n\nthread 'main' (1) panicked at src/lib.rs:5:9:\nboom\ntwice\nnote: run with `RUST_BACKTRACE=1` to see\n";
        assert_eq!(of(rust).as_deref(), Some("panicked at src/lib.rs:5:9: boom twice"));
        let older = "thread '<unnamed>' panicked at src/lib.rs:5:9:\nboom\nstack backtrace:\n   0: x\n";
        assert_eq!(of(older).as_deref(), Some("panicked at src/lib.rs:5:9: boom"));
        let caught = "thread 'main' panicked at src/lib.rs:5:9:\nboom\nnote: run with it\nbad row\n";
        assert_eq!(of(caught).as_deref(), Some("bad row"));
        let go = "log\npanic: boom\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:3 +0x2\nexit status 2\n";
        assert_eq!(of(go).as_deref(), Some("panic: boom"));
        assert_eq!(of("panic: boom").as_deref(), Some("panic: boom"));
        // The programs of TinyGo and other compilers print no goroutines. Any program may print a line like that of a
        // Go panic.
        assert_eq!(of("panic: no\nbut it goes on").as_deref(), Some("but it goes on"));
    }

    #[test]
    fn without_a_panic_the_last_line_with_text_says_why() {
        assert_eq!(of(""), None);
        assert_eq!(of(" \n\n"), None);
        assert_eq!(of("first\n  bad row \n\n").as_deref(), Some("bad row"));
        let python = "Traceback (most recent call last):\n  File \"app.py\", line 3, in f\nValueError: boom\n";
        assert_eq!(of(python).as_deref(), Some("ValueError: boom"));
        let js = "TypeError: boom\n    at greet (index.js:3:1)\n    at handle (component.js:1:1)\n";
        assert_eq!(of(js).as_deref(), Some("TypeError: boom"));
        assert_eq!(of("  at last\n").as_deref(), Some("at last"));
        assert_eq!(of("it panicked at noon").as_deref(), Some("it panicked at noon"));
    }
}
