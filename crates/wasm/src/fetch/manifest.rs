//! Selects the layer of an artifact that contains the handler.

use serde::Deserialize;

use super::reference::sha256;
use super::{Fault, MAX_HANDLER};

/// Media types of the manifests that hostler accepts, for the `Accept` header.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// Media types of layers that contain handlers: the CNCF's type for WASM in OCI artifacts, its predecessor, and
/// hostler's own type for `.cwasm`.
const HANDLERS: [&str; 3] =
    ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm", "application/vnd.hostler.cwasm"];

/// Suggested fix if no layer or manifest can be selected.
const CURE: &str = "push the .wasm file as the one layer of an artifact, with the media type application/wasm";

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
}

/// A part of an artifact, which is fetched by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// SHA-256 of the part.
    pub digest: [u8; 32],
    /// Size in bytes. 0: the manifest does not state the size.
    pub size: u64,
}

/// The part to which a manifest refers.
#[derive(Debug, PartialEq, Eq)]
pub enum Leads {
    /// The layer that contains the handler.
    ToLayer(Part),
    /// Another manifest, because this manifest is an index.
    ToManifest(Part),
}

/// Parses a manifest and selects the layer or the manifest to fetch next.
///
/// # Errors
/// [`Fault::Lasting`] if the bytes are not a manifest, or if the manifest does not select exactly one handler.
pub fn read(bytes: &[u8]) -> Result<Leads, Fault> {
    let manifest: Manifest = serde_json::from_slice(bytes)
        .map_err(|error| Fault::Lasting(format!("its manifest cannot be read: {error}"), CURE))?;
    if manifest.layers.is_empty() && !manifest.manifests.is_empty() {
        let wasm =
            |entry: &&Descriptor| entry.platform.as_ref().is_some_and(|platform| platform.architecture == "wasm");
        let platforms = || {
            let names = manifest
                .manifests
                .iter()
                .map(|entry| entry.platform.as_ref().map_or("no platform", |platform| platform.architecture.as_str()));
            names.collect::<Vec<_>>().join(", ")
        };
        let what =
            || format!("it is an index, and not one of its manifests alone is for wasm (it has {})", platforms());
        let entry = only(&manifest.manifests, wasm).ok_or_else(|| Fault::Lasting(what(), CURE))?;
        return entry.part().map(Leads::ToManifest);
    }
    let types = || manifest.layers.iter().map(|layer| layer.media_type.as_str()).collect::<Vec<_>>().join(", ");
    let what = || match manifest.layers.len() {
        0 => "there is no layer in it".to_owned(),
        count => format!("not one of its {count} layers alone is WASM (it has {})", types()),
    };
    let layer = only(&manifest.layers, |layer| HANDLERS.contains(&layer.media_type.as_str()))
        .ok_or_else(|| Fault::Lasting(what(), CURE))?;
    layer.part().map(Leads::ToLayer)
}

/// Returns the only descriptor that `fits` accepts. If `fits` accepts none and the list has exactly one descriptor,
/// returns that descriptor. `None`: the list is empty, or more than one descriptor could be meant.
fn only(all: &[Descriptor], fits: impl FnMut(&&Descriptor) -> bool) -> Option<&Descriptor> {
    let fitting: Vec<_> = all.iter().filter(fits).collect();
    match (fitting.as_slice(), all) {
        ([one], _) => Some(*one),
        ([], [one]) => Some(one),
        _ => None,
    }
}

impl Descriptor {
    fn part(&self) -> Result<Part, Fault> {
        let unknown = || Fault::Lasting(format!("its digest `{}` is not of the kind sha256", self.digest), CURE);
        if self.size > MAX_HANDLER {
            return Err(super::too_large(MAX_HANDLER));
        }
        Ok(Part { digest: sha256(&self.digest).ok_or_else(unknown)?, size: self.size })
    }
}

/// Checks that the bytes start as a handler does: as WASM, or as the output of `hostler compile`.
pub(super) fn check_layer(bytes: &[u8]) -> Result<(), Fault> {
    if bytes.starts_with(b"\0asm") || bytes.starts_with(b"hostler") {
        return Ok(());
    }
    Err(Fault::Lasting("its layer is neither WASM nor a .cwasm file".into(), CURE))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn layer(media_type: &str, digit: &str, size: u64) -> Value {
        json!({ "mediaType": media_type, "digest": format!("sha256:{}", digit.repeat(64)), "size": size })
    }

    fn read_json(manifest: &Value) -> Result<Leads, String> {
        read(manifest.to_string().as_bytes()).map_err(|fault| match fault {
            Fault::Lasting(what, _) => what,
            Fault::Passing(what) => panic!("{what}"),
        })
    }

    #[test]
    fn finds_the_layer_that_is_wasm() {
        let one = Leads::ToLayer(Part { digest: [0x11; 32], size: 7 });
        for media_type in HANDLERS.into_iter().chain(["application/octet-stream"]) {
            assert_eq!(read_json(&json!({ "layers": [layer(media_type, "1", 7)] })).unwrap(), one);
        }
        let layers = json!([layer("text/plain", "2", 1), layer("application/wasm", "1", 7)]);
        assert_eq!(read_json(&json!({ "layers": layers })).unwrap(), one);
    }

    #[test]
    fn follows_an_index_to_the_one_manifest_that_fits() {
        let entry = |architecture: &str, digit: &str| {
            let mut entry = layer("application/vnd.oci.image.manifest.v1+json", digit, 7);
            entry["platform"] = json!({ "architecture": architecture, "os": "any" });
            entry
        };
        let wasm = Leads::ToManifest(Part { digest: [0x11; 32], size: 7 });
        for entries in [json!([entry("amd64", "2"), entry("wasm", "1")]), json!([entry("amd64", "1")])] {
            assert_eq!(read_json(&json!({ "manifests": entries })).unwrap(), wasm);
        }
        let refused = read_json(&json!({ "manifests": [entry("amd64", "2"), entry("arm64", "1")] })).unwrap_err();
        assert!(refused.contains("amd64, arm64"), "{refused}");
    }

    #[test]
    fn refuses_what_it_cannot_choose_from_or_verify() {
        let wasm = |digit| layer("application/wasm", digit, 7);
        let mut md5 = wasm("1");
        md5["digest"] = json!("md5:00");
        for (layers, fault) in [
            (json!([]), "no layer"),
            (json!([wasm("1"), wasm("2")]), "not one of its 2 layers"),
            (json!([layer("a/b", "1", 7), layer("c/d", "1", 7)]), "a/b, c/d"),
            (json!([md5]), "md5"),
            (json!([layer("application/wasm", "1", MAX_HANDLER + 1)]), "more than"),
        ] {
            let refused = read_json(&json!({ "layers": layers })).unwrap_err();
            assert!(refused.contains(fault), "{refused}");
        }
        assert!(read(b"<html>").is_err());
    }
}
