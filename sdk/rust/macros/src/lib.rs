//! Attributes of `hostler-guest`: `#[handler]` and the hooks. The crate `hostler-guest` documents them.
//!
//! Each attribute leaves its function unchanged. After the function, it adds a call of the macro in `hostler-guest` that exports
//! the function.

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// Exports a function as the handler of messages. See `hostler_guest`.
#[proc_macro_attribute]
pub fn handler(arguments: TokenStream, item: TokenStream) -> TokenStream {
    export("handler", arguments, item)
}

/// Exports a function as the handler of batches. See `hostler_guest`.
#[proc_macro_attribute]
pub fn batch_handler(arguments: TokenStream, item: TokenStream) -> TokenStream {
    export("batch_handler", arguments, item)
}

/// Exports a function as the hook `message-start`. See `hostler_guest`.
#[proc_macro_attribute]
pub fn message_start(arguments: TokenStream, item: TokenStream) -> TokenStream {
    export("message_start", arguments, item)
}

/// Exports a function as the hook `message-end`. See `hostler_guest`.
#[proc_macro_attribute]
pub fn message_end(arguments: TokenStream, item: TokenStream) -> TokenStream {
    export("message_end", arguments, item)
}

/// Exports a function as the hook `processing-timeout`. See `hostler_guest`.
#[proc_macro_attribute]
pub fn processing_timeout(arguments: TokenStream, item: TokenStream) -> TokenStream {
    export("processing_timeout", arguments, item)
}

/// Exports a function as the hook `state-changed`. See `hostler_guest`.
#[proc_macro_attribute]
pub fn state_changed(arguments: TokenStream, item: TokenStream) -> TokenStream {
    export("state_changed", arguments, item)
}

fn export(attribute: &str, arguments: TokenStream, item: TokenStream) -> TokenStream {
    let name = match arguments.into_iter().next() {
        Some(argument) => Err((argument.span(), format!("#[{attribute}] takes no arguments"))),
        None => function(attribute, item.clone()),
    };
    let call = match name {
        // `::hostler_guest::__export_…!(name);`
        Ok(name) => {
            let span = name.span();
            let path = [("hostler_guest", span), (&format!("__export_{attribute}"), span)];
            let argument = Group::new(Delimiter::Parenthesis, TokenTree::from(name).into());
            invocation(&path, argument)
        }
        // `::core::compile_error!("…");`
        Err((span, fault)) => {
            let mut text = proc_macro::Literal::string(&fault);
            text.set_span(span);
            invocation(
                &[("core", span), ("compile_error", span)],
                Group::new(Delimiter::Parenthesis, TokenTree::from(text).into()),
            )
        }
    };
    item.into_iter().chain(call).collect()
}

/// Returns the name of the function that the attribute marks. The error states where and why the item cannot be exported.
fn function(attribute: &str, item: TokenStream) -> Result<Ident, (Span, String)> {
    let mut last = Span::call_site();
    let mut tokens = item.into_iter();
    while let Some(token) = tokens.next() {
        last = token.span();
        let TokenTree::Ident(word) = &token else { continue };
        match word.to_string().as_str() {
            "async" => {
                return Err((
                    last,
                    format!("a function under #[{attribute}] cannot be async: a sandbox runs one call at a time"),
                ));
            }
            "struct" | "enum" | "union" | "trait" | "impl" | "mod" | "static" | "use" | "type" | "macro_rules" => break,
            "fn" => return named(attribute, last, tokens),
            _ => {}
        }
    }
    Err((last, format!("#[{attribute}] belongs on a function")))
}

fn named(attribute: &str, at: Span, mut rest: impl Iterator<Item = TokenTree>) -> Result<Ident, (Span, String)> {
    let Some(TokenTree::Ident(name)) = rest.next() else {
        return Err((at, format!("#[{attribute}] belongs on a function")));
    };
    match rest.next() {
        Some(TokenTree::Punct(punct)) if punct.as_char() == '<' => {
            Err((punct.span(), format!("a function under #[{attribute}] cannot be generic")))
        }
        _ => Ok(name),
    }
}

/// Returns the tokens of a macro call `::a::b!(…);`.
fn invocation(path: &[(&str, Span)], argument: Group) -> TokenStream {
    let mut tokens = Vec::<TokenTree>::new();
    let punct = |character, spacing, span| {
        let mut punct = Punct::new(character, spacing);
        punct.set_span(span);
        TokenTree::from(punct)
    };
    for (name, span) in path {
        tokens.push(punct(':', Spacing::Joint, *span));
        tokens.push(punct(':', Spacing::Alone, *span));
        tokens.push(Ident::new(name, *span).into());
    }
    let span = path.last().map_or_else(Span::call_site, |(_, span)| *span);
    tokens.push(punct('!', Spacing::Alone, span));
    tokens.push(argument.into());
    tokens.push(punct(';', Spacing::Alone, span));
    tokens.into_iter().collect()
}
