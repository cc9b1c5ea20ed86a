//! The help of every command fits a screen and shows an example.

use crate::support::hostler::{Said, World};

/// The screen that it has to fit.
const COLUMNS: usize = 80;
const LINES: usize = 43;

/// The commands that a help text lists. A description that goes over several lines is indented further.
fn listed(help: &str) -> Vec<&str> {
    let Some((_, listed)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = listed.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

#[test]
fn the_help_of_every_command_fits_a_screen_and_has_an_example() {
    let world = World::new("");
    let (mut paths, mut faults) = (vec![Vec::<String>::new()], Vec::new());
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        for form in ["--help", "-h"] {
            let args: Vec<&str> = path.iter().map(String::as_str).chain([form]).collect();
            let said = Said::new(world.command(&args).env("COLUMNS", COLUMNS.to_string()).output().unwrap());
            assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{args:?}");
            let wide: Vec<_> = said.stdout.lines().filter(|line| line.chars().count() > COLUMNS).collect();
            if said.stdout.lines().count() > LINES || !wide.is_empty() {
                faults.push(format!("{args:?} does not fit {COLUMNS} x {LINES}, {wide:?}:\n{}", said.stdout));
            }
            let example = format!("  hostler {}", path.join(" "));
            if !said.stdout.lines().any(|line| line.starts_with(&example) || line.starts_with("Example: hostler ")) {
                faults.push(format!("{args:?} has no example, a line `  hostler {}`", path.join(" ")));
            }
            if form == "--help" {
                paths.extend(listed(&said.stdout).iter().map(|name| [path.clone(), vec![(*name).to_owned()]].concat()));
            }
        }
    }
    assert!(paths.len() > 20, "only {} commands are found", paths.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
