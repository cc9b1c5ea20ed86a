//! Finds the programs and files that provide the credentials of an AWS SDK profile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Relevant keys of a profile and of its source profiles (`source_profile`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Set if a program provides the credentials (`credential_process`).
    pub runs_program: bool,
    /// Files that contain a token (`web_identity_token_file`). Renewing the token replaces the file.
    pub token_files: Vec<PathBuf>,
}

impl Profile {
    /// Reads the profile `name` from the contents of the SDK's config file and credentials file.
    pub fn of(name: &str, config: &str, credentials: &str) -> Self {
        let mut sections = BTreeMap::<String, BTreeMap<String, String>>::new();
        read(config, &mut sections);
        read(credentials, &mut sections);
        let (mut profile, mut seen, mut next) = (Self::default(), BTreeSet::new(), Some(name.to_owned()));
        while let Some(keys) = next.take().filter(|name| seen.insert(name.clone())).and_then(|name| sections.get(&name))
        {
            profile.runs_program |= keys.contains_key("credential_process");
            profile.token_files.extend(keys.get("web_identity_token_file").map(PathBuf::from));
            next = keys.get("source_profile").cloned();
        }
        profile
    }
}

/// Adds the sections of a file to `sections`. The header of a profile is `[profile name]` or `[name]`.
fn read(text: &str, sections: &mut BTreeMap<String, BTreeMap<String, String>>) {
    let mut section = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(head) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            let head = head.trim();
            let name =
                head.strip_prefix("profile").filter(|name| name.starts_with(char::is_whitespace)).unwrap_or(head);
            section = name.trim().to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            let keys = sections.entry(section.clone()).or_default();
            keys.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_profile_and_where_it_leads() {
        let config = "[default]\nregion = eu-west-1\n# credential_process = no\n[profile one]\nsource_profile=two\n\
            [profile two]\nSOURCE_PROFILE = three\n[ profile  loop ]\nsource_profile = loop\n";
        let credentials = "[three]\ncredential_process = /bin/get --it\n[four]\nweb_identity_token_file = /run/token\n";
        let of = |name: &str| Profile::of(name, config, credentials);
        for (name, runs_program) in
            [("default", false), ("one", true), ("two", true), ("three", true), ("loop", false), ("missing", false)]
        {
            assert_eq!(of(name).runs_program, runs_program, "{name}");
        }
        assert_eq!(of("four").token_files, [PathBuf::from("/run/token")]);
    }
}
