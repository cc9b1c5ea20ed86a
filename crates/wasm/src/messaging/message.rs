//! The `message` resource of wasi:messaging: a received message, or a message that the guest creates for sending.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use wasmtime::component::{LinkerInstance, Resource, ResourceTable, ResourceType, WasmList};
use wasmtime_wasi::WasiView as _;

use super::super::limits::HELD_PER_HANDLE;
use super::super::lists::{self, MAX_ENTRIES};
use super::super::sandbox::{ComponentWasi, Host, Sandbox};
use hostler_handler::Call;
use hostler_types::message::{AttributeValue, CONTENT_TYPE, Outgoing, Plain};

/// Memory in bytes that a metadata entry uses in addition to its name and value.
const ENTRY: usize = 128;

/// The WIT type `metadata`.
type Metadata = Vec<(String, String)>;

/// A message. The content type is the attribute `content-type`.
#[derive(Default)]
pub(super) struct Message {
    topic: Option<String>,
    data: Data,
    attributes: BTreeMap<String, String>,
    /// Placeholders that make a large message count as several handles: one placeholder in the handle table for each
    /// [`HELD_PER_HANDLE`] bytes of the message. See [`weigh`].
    ballast: Vec<Resource<Ballast>>,
}

enum Data {
    /// The body of a received message, shared with the host.
    Received(Bytes),
    /// Data that the guest created.
    Made(Vec<u8>),
}

/// An empty placeholder that takes up one entry of the handle table.
pub(super) struct Ballast;

impl Default for Data {
    fn default() -> Self {
        Self::Made(Vec::new())
    }
}

impl Data {
    /// Returns the number of bytes that the host stores only for this message. A shared body counts as 0.
    fn weight(&self) -> usize {
        match self {
            Self::Received(_) => 0,
            Self::Made(data) => data.capacity(),
        }
    }
}

impl Message {
    /// Creates the message that `call` passes to the guest. Binary attributes become Base64 strings.
    pub(super) fn received(call: &Call) -> Self {
        let attributes = call.message.attributes.iter().map(|(name, value)| {
            let value = match value.plain() {
                Plain::Text(text) => text.to_owned(),
                Plain::Binary(bytes) => STANDARD.encode(bytes),
            };
            (name.clone(), value)
        });
        Self {
            topic: Some(call.channel.to_string()),
            data: Data::Received(call.message.body.clone()),
            attributes: attributes.collect(),
            ballast: Vec::new(),
        }
    }

    /// Adds the message to the table of the guest's resources.
    pub(super) fn enter(mut self, table: &mut ResourceTable) -> wasmtime::Result<Resource<Self>> {
        weigh(table, &mut self)?;
        table.push(self).map_err(|_| too_much())
    }

    /// Removes the message from the table of the guest's resources.
    pub(super) fn leave(table: &mut ResourceTable, message: Resource<Self>) -> wasmtime::Result<Self> {
        let mut message = table.delete(message)?;
        for ballast in message.ballast.drain(..) {
            table.delete(ballast)?;
        }
        Ok(message)
    }

    /// Changes a message in the table, and then checks the limits.
    fn change(host: &mut Host<'_>, message: &Resource<Self>, change: impl FnOnce(&mut Self)) -> wasmtime::Result<()> {
        let table = host.data_mut().ctx().table;
        let mut changed = std::mem::take(table.get_mut(message)?);
        // A received message may already have more entries than the maximum.
        let most = changed.attributes.len().max(MAX_ENTRIES);
        change(&mut changed);
        if changed.attributes.len() > most {
            return Err(wasmtime::Error::msg(format!("a message's metadata has more than {most} entries")));
        }
        weigh(table, &mut changed)?;
        *table.get_mut(message)? = changed;
        Ok(())
    }

    fn content_type(&self) -> Option<String> {
        self.attributes.iter().find(|(name, _)| is_content_type(name)).map(|(_, value)| value.clone())
    }

    fn set_content_type(&mut self, content_type: String) {
        self.attributes.retain(|name, _| !is_content_type(name));
        self.attributes.insert(CONTENT_TYPE.to_owned(), content_type);
    }

    /// Replaces the metadata. Keeps the content type unless the new metadata contains one.
    fn set_metadata(&mut self, metadata: Metadata) {
        let content_type = self.content_type();
        self.attributes = metadata.into_iter().collect();
        if let (Some(content_type), None) = (content_type, self.content_type()) {
            self.set_content_type(content_type);
        }
    }

    /// Returns the number of bytes that the host stores for the message.
    fn weight(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + value.len() + ENTRY);
        self.data.weight() + attributes.sum::<usize>()
    }
}

impl From<Message> for Outgoing {
    fn from(message: Message) -> Self {
        let body = match message.data {
            Data::Received(body) => body.to_vec(),
            Data::Made(data) => data,
        };
        let attributes = message.attributes.into_iter().map(|(name, value)| (name, AttributeValue::Text(value)));
        Self { body, attributes: attributes.collect(), ..Self::default() }
    }
}

fn is_content_type(name: &str) -> bool {
    name.eq_ignore_ascii_case(CONTENT_TYPE)
}

/// Limits the memory of messages by the maximum number of the guest's handles. Adds or removes placeholders in the
/// handle table until there is one for each [`HELD_PER_HANDLE`] bytes of the message. Fails if the table is full.
fn weigh(table: &mut ResourceTable, message: &mut Message) -> wasmtime::Result<()> {
    let places = message.weight() / HELD_PER_HANDLE;
    while message.ballast.len() < places {
        message.ballast.push(table.push(Ballast).map_err(|_| too_much())?);
    }
    for ballast in message.ballast.drain(places..) {
        table.delete(ballast)?;
    }
    Ok(())
}

fn too_much() -> wasmtime::Error {
    wasmtime::Error::msg("its messages and open files are more than limits.memory allows the host to hold")
}

/// Adds the resource `message` and its functions to `types`.
pub(super) fn add(types: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    types.resource("message", ResourceType::host::<Message>(), |mut host, handle| {
        Message::leave(host.data_mut().ctx().table, Resource::new_own(handle)).map(drop)
    })?;
    types.func_wrap("[constructor]message", |mut host: Host<'_>, (data,): (Vec<u8>,)| {
        let message = Message { data: Data::Made(data), ..Message::default() };
        Ok((message.enter(host.data_mut().ctx().table)?,))
    })?;
    add_getters(types)?;
    add_setters(types)
}

fn add_getters(types: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    types.func_wrap("[method]message.topic", |mut host: Host<'_>, (message,): (Resource<Message>,)| {
        Ok((host.data_mut().ctx().table.get(&message)?.topic.clone(),))
    })?;
    types.func_wrap("[method]message.content-type", |mut host: Host<'_>, (message,): (Resource<Message>,)| {
        Ok((host.data_mut().ctx().table.get(&message)?.content_type(),))
    })?;
    types.func_wrap("[method]message.data", |mut host: Host<'_>, (message,): (Resource<Message>,)| {
        let message = host.data_mut().ctx().table.get(&message)?;
        Ok((match &message.data {
            Data::Received(body) => body.to_vec(),
            Data::Made(data) => data.clone(),
        },))
    })?;
    types.func_wrap("[method]message.metadata", |mut host: Host<'_>, (message,): (Resource<Message>,)| {
        let attributes = host.data_mut().ctx().table.get(&message)?.attributes.clone();
        Ok(((!attributes.is_empty()).then(|| attributes.into_iter().collect::<Metadata>()),))
    })
}

fn add_setters(types: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    types.func_wrap(
        "[method]message.set-content-type",
        |mut host: Host<'_>, (message, content_type): (Resource<Message>, String)| {
            Message::change(&mut host, &message, |message| message.set_content_type(content_type))
        },
    )?;
    types.func_wrap(
        "[method]message.set-data",
        |mut host: Host<'_>, (message, data): (Resource<Message>, Vec<u8>)| {
            Message::change(&mut host, &message, |message| message.data = Data::Made(data))
        },
    )?;
    types.func_wrap(
        "[method]message.add-metadata",
        |mut host: Host<'_>, (message, key, value): (Resource<Message>, String, String)| {
            Message::change(&mut host, &message, |message| {
                message.attributes.insert(key, value);
            })
        },
    )?;
    types.func_wrap(
        "[method]message.set-metadata",
        |mut host: Host<'_>, (message, metadata): (Resource<Message>, WasmList<(String, String)>)| {
            // `set-metadata` cannot return an error, so a list that is too long traps.
            let taken = lists::take(&mut host, &metadata, MAX_ENTRIES)?;
            let metadata = taken.map_err(|what| wasmtime::Error::msg(format!("a message's metadata: {what}")))?;
            Message::change(&mut host, &message, |message| message.set_metadata(metadata))
        },
    )?;
    types.func_wrap(
        "[method]message.remove-metadata",
        |mut host: Host<'_>, (message, key): (Resource<Message>, String)| {
            Message::change(&mut host, &message, |message| {
                message.attributes.remove(&key);
            })
        },
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use hostler_handler::{Bounds, Output};

    fn received(attributes: &[(&str, AttributeValue)]) -> Message {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let message =
            hostler_types::message::Message { attributes, ..hostler_types::message::Message::new("1", "body") };
        let bounds = Bounds::new(Duration::from_secs(1));
        Message::received(&Call::new(Arc::new(message), "in".into(), 1, bounds, Output::new(0)))
    }

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.into())
    }

    #[test]
    fn attributes_are_its_metadata_and_binary_ones_are_base64() {
        let message = received(&[("zone", text("ä")), ("raw", AttributeValue::Binary(vec![0xff, 0]))]);
        assert_eq!(message.topic.as_deref(), Some("in"));
        let outgoing = Outgoing::from(message);
        assert_eq!(outgoing.body, b"body");
        assert_eq!(outgoing.attributes, [("zone".into(), text("ä")), ("raw".into(), text("/wA="))].into());
    }

    #[test]
    fn the_content_type_is_the_attribute_of_that_name_and_outlives_other_metadata() {
        let mut message = received(&[("Content-Type", text("text/csv"))]);
        assert_eq!(message.content_type().as_deref(), Some("text/csv"));
        message.set_content_type("text/html".into());
        assert_eq!(message.attributes.len(), 1);
        message.set_metadata(vec![("a".into(), "1".into())]);
        assert_eq!((message.attributes.len(), message.content_type().as_deref()), (2, Some("text/html")));
        message.set_metadata(vec![("CONTENT-TYPE".into(), "text/plain".into())]);
        assert_eq!((message.attributes.len(), message.content_type().as_deref()), (1, Some("text/plain")));
    }

    #[test]
    fn a_message_takes_the_place_of_what_it_holds() {
        let mut table = ResourceTable::new();
        table.set_max_capacity(4);
        let large = || Message { data: Data::Made(vec![0; 3 * HELD_PER_HANDLE]), ..Message::default() };
        let first = large().enter(&mut table).unwrap();
        assert!(large().enter(&mut table).is_err());
        drop(Message::leave(&mut table, first).unwrap());
        assert_eq!(table.iter_mut().count(), 0);
        let second = large().enter(&mut table).unwrap();
        let mut emptied = std::mem::take(table.get_mut(&second).unwrap());
        emptied.data = Data::default();
        weigh(&mut table, &mut emptied).unwrap();
        assert_eq!(table.iter_mut().count(), 1);
    }
}
