//! Grants that overlap with what hostler itself reads: no host starts with one, and `check` says so.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::guests::{command, component};
use crate::support::hostler::{Said, World};
use crate::support::mounts::Mounts;

/// A world whose health file, queue, cache and handler each have a folder of their own, with these grants.
fn world(dirs: &str, more: &str) -> World {
    let head = "
        host.health_file = 'run/health.json'
        host.cache_dir = 'cache'
        queue.embedded.path = 'queue/queue.db'
    ";
    let consumer = "[consumers.one]\nchannel = 'one'\nhandler = 'code/one.wasm'\nhooks = 'hooks/hooks.wasm'";
    let world = World::with(head, Vec::new(), &format!("{consumer}\nallow.dirs = [{dirs}]\n{more}"));
    for folder in ["run", "cache", "queue", "code", "hooks", "data", "data/deep"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    fs::copy(component("acks"), world.path("code/one.wasm")).unwrap();
    fs::copy(component("hook-start-prints"), world.path("hooks/hooks.wasm")).unwrap();
    world
}

fn grant(host: &str, mode: &str) -> String {
    format!("{{ host = '{host}', guest = '/{}', mode = '{mode}' }}", host.trim_matches(['/', '.']).replace('/', "-"))
}

/// Asserts that nothing starts, with the cure, and that `key` is named.
fn assert_refused(world: &World, key: &str) {
    // What `check` lets pass, `run` would start.
    for command in ["check", "run"] {
        assert_refusal(&world.output(&[command]), key);
    }
}

fn assert_refusal(said: &Said, key: &str) {
    assert_eq!(said.code, 64, "{key}: {said:?}");
    let named = said.stderr.contains("consumers.one.allow.dirs") && said.stderr.contains(key);
    assert!(named && said.stderr.contains("cure: "), "{key}: {said:?}");
}

#[test]
fn a_grant_that_overlaps_with_hostlers_own_files_is_refused() {
    for (folder, key) in [
        ("run", "host.health_file"),
        ("run/health.json.paused", "host.health_file"),
        ("run/health.json.paused/deep", "host.health_file"),
        ("run/health.json.requests", "host.health_file"),
        ("cache", "host.cache_dir"),
        ("cache/within", "host.cache_dir"),
        ("queue", "queue.embedded.path"),
        ("code", "consumers.one.handler"),
        ("hooks", "consumers.one.hooks"),
        (".", "hostler.toml"),
        ("..", "hostler.toml"),
        ("data/../queue", "queue.embedded.path"),
        ("link", "queue.embedded.path"),
    ] {
        let world = world(&grant(folder, "rw"), "");
        symlink(world.path("queue"), world.path("link")).unwrap();
        assert_refused(&world, key);
    }
}

#[test]
fn the_default_health_file_is_out_of_reach_too() {
    for folder in ["/tmp", "/tmp/hostler", "/tmp/hostler/health.json.paused"] {
        let consumer = format!(
            "[consumers.one]\nchannel = 'one'\nhandler = '{}'\nallow.dirs = [{}]",
            command("main-exits").display(),
            grant(folder, "rw")
        );
        let world = World::with("queue.embedded.path = 'queue.db'\n", Vec::new(), &consumer);
        assert_refused(&world, "/tmp/hostler");
    }
}

/// A guest could replace the inner folder by a link, and its next sandbox would open what that leads to.
#[test]
fn a_grant_within_a_writable_one_is_refused() {
    let two = |mode| {
        let dirs = grant("data/deep", mode);
        format!("[consumers.two]\nchannel = 'two'\nhandler = 'code/one.wasm'\nallow.dirs = [{dirs}]")
    };
    assert_refused(&world(&[grant("data", "rw"), grant("data/deep", "rw")].join(", "), ""), "data/deep");
    assert_refused(&world(&grant("data", "rw"), &two("ro")), "consumers.two.allow.dirs");
}

/// `/proc/self/mem` is hostler's memory, its code included, and `/proc/self/environ` has its secrets.
#[test]
fn what_the_kernel_shows_as_files_is_refused() {
    for (folder, mode) in [
        ("/proc", "rw"),
        ("/proc", "ro"),
        ("/proc/self", "ro"),
        ("link", "ro"),
        ("/", "ro"),
        ("/sys", "rw"),
        ("/dev", "rw"),
    ] {
        let world = world(&grant(folder, mode), "");
        symlink("/proc/self", world.path("link")).unwrap();
        assert_refused(&world, "cure: grant a folder that holds the guest's files");
    }
}

#[test]
fn every_link_on_the_way_to_a_handler_is_out_of_reach() {
    let world = world(&grant("data", "rw"), "");
    fs::rename(world.path("code/one.wasm"), world.path("code/v3.wasm")).unwrap();
    symlink(world.path("data/current.wasm"), world.path("code/one.wasm")).unwrap();
    symlink("../code/v3.wasm", world.path("data/current.wasm")).unwrap();
    assert_refused(&world, "consumers.one.handler");
}

#[test]
fn a_queue_that_a_link_would_make_in_a_writable_folder_is_refused() {
    let world = world(&grant("data", "rw"), "");
    symlink(world.path("data/real.db"), world.path("queue/queue.db")).unwrap();
    assert_refused(&world, "queue.embedded.path");
    let others: [&[&str]; 7] = [
        &["send", "one", "--body", "x"],
        &["queues"],
        &["provision"],
        &["provision", "--plan"],
        &["requeue", "--from", "one"],
        &["dlq", "ls", "one"],
        &["dlq", "drop", "one", "--id", "1", "--yes"],
    ];
    for args in others {
        assert_refusal(&world.output(args), "queue.embedded.path");
    }
    assert!(!world.path("data/real.db").exists(), "a command has made it");
}

#[test]
fn a_volume_that_is_mounted_at_two_places_is_one_folder() {
    for (volume, key) in [("cache", "host.cache_dir"), ("code", "consumers.one.handler")] {
        let world = world(&grant("data", "rw"), "");
        for folder in ["volume/cache", "volume/code"] {
            fs::create_dir_all(world.path(folder)).unwrap();
        }
        fs::copy(component("acks"), world.path("volume/code/one.wasm")).unwrap();
        let script = format!("mount --bind volume data && mount --bind volume/{volume} {volume}");
        let Some(mounts) = Mounts::new(&world, &script) else { return };
        for command in ["check", "run"] {
            assert_refusal(&Said::new(mounts.hostler(&world, &[command]).output().unwrap()), key);
        }
    }
}

#[test]
fn another_name_of_a_handler_in_a_writable_folder_is_refused() {
    let world = world(&grant("data", "rw"), "");
    fs::hard_link(world.path("code/one.wasm"), world.path("code/same.wasm")).unwrap();
    assert_eq!(world.output(&["check"]).code, 0, "no guest reaches the other name");
    fs::hard_link(world.path("code/one.wasm"), world.path("data/deep/again")).unwrap();
    assert_refused(&world, "consumers.one.handler has hard links");
}

/// Whoever configures by variables alone has no file, and a guest must not make one.
#[test]
fn a_config_that_is_not_there_yet_is_out_of_reach() {
    let world = world(&grant("data", "rw"), "");
    fs::rename(world.path("hostler.toml"), world.path("named.toml")).unwrap();
    let check = |named: bool| {
        let mut command = world.command(&["check"]);
        command.current_dir(world.path("data"));
        command.env("HOSTLER_CONSUMERS__ONE__ALLOW__DIRS", r#"[{host=".",guest="/",mode="rw"}]"#);
        for (key, path) in [
            ("HOST__HEALTH_FILE", "run/health.json"),
            ("QUEUE__EMBEDDED__PATH", "queue/queue.db"),
            ("HOST__CACHE_DIR", "cache"),
            ("CONSUMERS__ONE__HANDLER", "code/one.wasm"),
            ("CONSUMERS__ONE__HOOKS", "hooks/hooks.wasm"),
        ] {
            command.env(format!("HOSTLER_{key}"), world.path(path));
        }
        match named {
            true => command.env("HOSTLER_CONFIG", world.path("named.toml")),
            false => command.env("HOSTLER_CONSUMERS__ONE__CHANNEL", "one"),
        };
        Said::new(command.output().unwrap())
    };
    let said = check(true);
    assert_eq!(said.code, 0, "{said:?}");
    assert_refusal(&check(false), "hostler.toml");
}

#[test]
fn what_no_guest_can_use_is_granted() {
    let same =
        format!("[consumers.two]\nchannel = 'two'\nhandler = 'code/one.wasm'\nallow.dirs = [{}]", grant("data", "rw"));
    for world in [
        world(&grant("code", "ro"), ""),
        world(&grant("data", "rw"), &same),
        world(&[grant("data", "ro"), grant("data/deep", "rw")].join(", "), ""),
        world(&grant("run/beside", "rw"), ""),
    ] {
        let said = world.output(&["check"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

/// A change of a layer shows in the merged folder, and a change of the merged folder in its upper layer.
#[test]
fn layers_of_an_overlay_are_the_merged_folder() {
    for (granted, cache) in [
        ("layers/upper", "merged/cache"),
        ("layers/upper/cache", "merged/cache"),
        ("layers", "merged/cache"),
        ("layers/lower", "merged/cache"),
        ("merged", "layers/upper/cache"),
    ] {
        let world = world(&grant(granted, "rw"), "");
        for folder in ["layers", "merged"] {
            fs::create_dir(world.path(folder)).unwrap();
        }
        let text = fs::read_to_string(world.path("hostler.toml")).unwrap();
        fs::write(world.path("hostler.toml"), text.replace("cache_dir = 'cache'", &format!("cache_dir = '{cache}'")))
            .unwrap();
        // A file system of its own, as an overlay cannot be the upper layer of another.
        let script = "mount -t tmpfs none layers && mkdir -p layers/lower/cache layers/upper/cache layers/work && \
            mount -t overlay -o \"lowerdir=$PWD/layers/lower,upperdir=$PWD/layers/upper,workdir=$PWD/layers/work\" none merged";
        let Some(mounts) = Mounts::new(&world, script) else { return };
        for command in ["check", "run"] {
            assert_refusal(&Said::new(mounts.hostler(&world, &[command]).output().unwrap()), "host.cache_dir");
        }
    }
}

/// `mountinfo` does not have the mount that such a root lies in, so that nothing can be compared with it.
#[test]
fn a_root_that_is_no_mount_has_no_writable_grants() {
    let outcome = |mode, cure: &str| {
        let world = world(&grant("data", mode), "");
        for folder in ["proc", "dev", "tmp", "etc"] {
            fs::create_dir(world.path(folder)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_hostler"), world.path("hostler")).unwrap();
        fs::create_dir(world.path("vcache")).unwrap();
        fs::create_dir(world.path("data/cache")).unwrap();
        let text = fs::read_to_string(world.path("hostler.toml")).unwrap();
        fs::write(world.path("hostler.toml"), text.replace("'cache'", "'vcache'")).unwrap();
        let script =
            format!("{cure} mount --rbind /proc proc && mount --rbind /dev dev && mount --bind data/cache vcache");
        let mounts = Mounts::new(&world, &script)?;
        let root = world.path("");
        let args = [root.to_str().unwrap(), "/hostler", "check"];
        Some(Said::new(mounts.program(&world, "chroot", &args).output().unwrap()))
    };
    let Some(said) = outcome("rw", "") else { return };
    assert_refusal(&said, "mount --bind");
    assert_eq!(outcome("ro", "").unwrap().code, 0);
    // The cure, with which the volume is found.
    assert_refusal(&outcome("rw", "mount --bind . . && cd \"$PWD\" &&").unwrap(), "host.cache_dir");
}
