//! Templates for `hostler new`. Each language has template files in `templates/` and an SDK in `sdk/`.

use clap::ValueEnum;

use super::project::Content;

/// A programming language for handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Lang {
    Rust,
    Go,
    Python,
    Js,
    Ts,
    C,
}

/// The files of a project in one language, and the commands to run next.
#[derive(Debug)]
pub(super) struct Template {
    /// Files in which the project's name replaces [`NAME`].
    own: &'static [Source],
    /// Files that are copied unchanged: the SDK and the contract.
    vendored: &'static [Source],
    /// Commands to run after `cd`, to build and try the handler.
    pub(super) next: &'static [&'static str],
}

/// A file of this repository.
#[derive(Debug)]
struct Source {
    /// Path of the file in the project.
    path: &'static str,
    text: &'static str,
}

/// Placeholder for the name of the project.
const NAME: &str = "{{name}}";

/// Replaces the placeholder with the name of the project.
pub(super) fn named(text: &str, name: &str) -> String {
    text.replace(NAME, name)
}

impl Template {
    /// Returns the files of a project with this name.
    pub(super) fn files(&self, name: &str) -> Vec<Content> {
        let own = self.own.iter().map(|source| Content { path: target(source.path), text: named(source.text, name) });
        let vendored =
            self.vendored.iter().map(|source| Content { path: source.path.to_owned(), text: source.text.to_owned() });
        own.chain(vendored).collect()
    }
}

/// Returns the path of a template file in the project. Removes the suffix `.template`, which a file has in this repository if
/// tools would otherwise process the file. Adds the leading dot to the names of ignore files, which lack the dot in this
/// repository.
fn target(path: &str) -> String {
    match path.strip_suffix(".template") {
        Some(ignored) if ignored.ends_with("ignore") => format!(".{ignored}"),
        other => other.unwrap_or(path).to_owned(),
    }
}

/// Defines a file that is copied from this folder of the repository. The path is relative to the folder.
macro_rules! source {
    ($folder:literal, $path:literal) => {
        Source { path: $path, text: include_str!(concat!("../../../", $folder, "/", $path)) }
    };
}

/// Lists files in a folder of this repository. Paths are relative to the folder.
macro_rules! sources {
    ($folder:literal: $($path:literal),* $(,)?) => { &[$(source!($folder, $path)),*] };
}

/// Lists files of this repository, each with its path in the project.
macro_rules! vendored {
    ($($from:literal => $path:literal),* $(,)?) => {
        &[$(Source { path: $path, text: include_str!(concat!("../../../", $from)) }),*]
    };
}

impl Lang {
    /// Returns the template of this language.
    pub(super) fn template(self) -> &'static Template {
        match self {
            Self::Rust => &RUST,
            Self::Go => &GO,
            Self::Python => &PYTHON,
            Self::Js => &JS,
            Self::Ts => &TS,
            Self::C => &C,
        }
    }
}

const TRY: &str = r#"hostler invoke {{name}} --body '{"name": "Ada"}'"#;

static RUST: Template = Template {
    own: sources!("templates/rust":
        "Cargo.toml.template",
        "Dockerfile",
        "README.md",
        "build.rs",
        "dockerignore.template",
        "gitignore.template",
        "hostler.toml",
        "src/lib.rs",
    ),
    vendored: vendored!(
        "sdk/rust/Cargo.toml" => "hostler-guest/Cargo.toml",
        "sdk/rust/README.md" => "hostler-guest/README.md",
        "sdk/rust/macros/Cargo.toml" => "hostler-guest/macros/Cargo.toml",
        "sdk/rust/macros/src/lib.rs" => "hostler-guest/macros/src/lib.rs",
        "sdk/rust/src/answer.rs" => "hostler-guest/src/answer.rs",
        "sdk/rust/src/arena.rs" => "hostler-guest/src/arena.rs",
        "sdk/rust/src/batch.rs" => "hostler-guest/src/batch.rs",
        "sdk/rust/src/context.rs" => "hostler-guest/src/context.rs",
        "sdk/rust/src/contract.rs" => "hostler-guest/src/contract.rs",
        "sdk/rust/src/export.rs" => "hostler-guest/src/export.rs",
        "sdk/rust/src/failure.rs" => "hostler-guest/src/failure.rs",
        "sdk/rust/src/hooks.rs" => "hostler-guest/src/hooks.rs",
        "sdk/rust/src/job.rs" => "hostler-guest/src/job.rs",
        "sdk/rust/src/lib.rs" => "hostler-guest/src/lib.rs",
        "sdk/rust/src/message.rs" => "hostler-guest/src/message.rs",
        "sdk/rust/src/producer.rs" => "hostler-guest/src/producer.rs",
        "sdk/rust/src/testing.rs" => "hostler-guest/src/testing.rs",
        "wit/consumer.wit" => "hostler-guest/wit/consumer.wit",
    ),
    next: &["cargo build --release --target wasm32-wasip2", TRY],
};

static GO: Template = Template {
    own: sources!("templates/go":
        "Dockerfile",
        "README.md",
        "dockerignore.template",
        "gitignore.template",
        "go.mod.template",
        "hostler.toml",
        "main.go",
        "main_test.go",
    ),
    vendored: vendored!("sdk/go/hostler.go" => "hostler/hostler.go"),
    next: &["GOOS=wasip1 GOARCH=wasm go build -ldflags='-s -w' -o {{name}}.wasm .", TRY],
};

static PYTHON: Template = Template {
    own: sources!("templates/python":
        "Dockerfile",
        "README.md",
        "app.py",
        "dockerignore.template",
        "gitignore.template",
        "hostler.toml",
        "requirements.txt",
        "test_app.py",
    ),
    vendored: vendored!("sdk/python/hostler.py" => "hostler.py", "wit/consumer.wit" => "wit/consumer.wit"),
    next: &[
        "python3 -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt",
        "componentize-py -d wit -w consumer componentize app -o {{name}}.wasm",
        TRY,
    ],
};

/// Defines the template of a language that npm builds. `$folder` contains template files of this language. The template
/// also contains the files in `templates/js` that all such languages share.
macro_rules! node {
    ($folder:literal: $($path:literal),* $(,)?) => {
        Template {
            own: &[
                source!("templates/js", "Dockerfile"),
                source!("templates/js", "component.js"),
                source!("templates/js", "hostler.toml"),
                $(source!($folder, $path)),*
            ],
            vendored: vendored!("sdk/js/hostler.js" => "hostler.js", "wit/consumer.wit" => "wit/consumer.wit"),
            next: &["npm install", "npm run build", TRY],
        }
    };
}

static JS: Template = node!("templates/js":
    "README.md",
    "dockerignore.template",
    "gitignore.template",
    "index.js",
    "index.test.js",
    "package.json",
);

static TS: Template = node!("templates/ts":
    "README.md",
    "dockerignore.template",
    "gitignore.template",
    "index.test.ts",
    "index.ts",
    "package.json",
    "tsconfig.json",
);

static C: Template = Template {
    own: sources!("templates/c":
        "Dockerfile",
        "Makefile",
        "README.md",
        "dockerignore.template",
        "gitignore.template",
        "handler.c",
        "hostler.toml",
        "test.sh",
    ),
    vendored: vendored!("sdk/c/hostler.h" => "hostler.h"),
    next: &["make", TRY],
};
