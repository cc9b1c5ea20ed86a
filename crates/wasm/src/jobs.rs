//! Host functions of the `jobs` interface: a guest's requests to the job whose item it processes.

use std::sync::Arc;

use wasmtime::component::{ComponentType, Lift, Linker, Lower, WasmList};

use super::VERSION;
use super::lists;
use super::sandbox::{ComponentWasi, Host, Sandbox};
use super::scope::Scope;
use hostler_types::job::{JobContext, JobError, JobInfo, MAX_ITEMS, NewJobItem};

/// Adds the `jobs` interface to the linker. Its functions only change the memory of the host, so none of them waits.
pub(super) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    type Add = (String, WasmList<NewItem>);
    let mut jobs = linker.instance(&format!("hostler:consumer/jobs@{VERSION}"))?;
    jobs.func_wrap("current", |host: Host<'_>, ()| {
        Ok((host.data().scope.job.as_ref().map(|job| Info::from(job.info().clone())),))
    })?;
    jobs.func_wrap("add-items", |mut host: Host<'_>, (target, items): Add| {
        let scope = Arc::clone(&host.data().scope);
        let job = match of(&scope) {
            Ok(job) => job,
            Err(refusal) => return Ok((Err(refusal),)),
        };
        // Copies the items only if the guest may add them.
        let items = match lists::take(&mut host, &items, MAX_ITEMS)? {
            Ok(items) => items,
            Err(what) => return Ok((Err(Refusal::Full(what)),)),
        };
        Ok((job.add_items(&target, items.into_iter().map(NewJobItem::from).collect()).map_err(Refusal::from),))
    })?;
    jobs.func_wrap("seal", |host: Host<'_>, (job,): (String,)| {
        let scope = &host.data().scope;
        Ok((of(scope).and_then(|current| current.seal(&job).map_err(Refusal::from)),))
    })?;
    jobs.func_wrap("progress", |host: Host<'_>, (fraction, text): (f64, String)| {
        let scope = &host.data().scope;
        Ok((of(scope).and_then(|current| current.progress(fraction, &text).map_err(Refusal::from)),))
    })
}

/// Returns the job of a call. If it has none, logs the denial and fails.
fn of(scope: &Scope) -> Result<&dyn JobContext, Refusal> {
    scope.job.as_deref().ok_or_else(|| {
        scope.denials.tell("acting on a job", "name the job's type as the consumer's job, in place of channel");
        JobError::NoJob.into()
    })
}

/// The WIT type `job-info`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct Info {
    #[component(name = "job-id")]
    job_id: String,
    #[component(name = "root-id")]
    root_id: String,
    #[component(name = "job-type")]
    job_type: String,
    #[component(name = "item-id")]
    item_id: String,
    attempt: u32,
}

impl From<JobInfo> for Info {
    fn from(info: JobInfo) -> Self {
        let JobInfo { job_id, root_id, job_type, item_id, attempt } = info;
        Self { job_id, root_id, job_type, item_id, attempt }
    }
}

/// The WIT type `new-item`, passed from a guest.
#[derive(ComponentType, Lift)]
#[component(record)]
struct NewItem {
    payload: String,
    #[component(name = "dedupe-key")]
    dedupe_key: Option<String>,
    #[component(name = "serialize-key")]
    serialize_key: Option<String>,
    priority: i16,
}

impl From<NewItem> for NewJobItem {
    fn from(item: NewItem) -> Self {
        let NewItem { payload, dedupe_key, serialize_key, priority } = item;
        Self { payload: payload.into(), dedupe_key, serialize_key, priority }
    }
}

/// The WIT type `job-error`.
#[derive(ComponentType, Lower)]
#[component(variant)]
enum Refusal {
    #[component(name = "no-job")]
    NoJob(String),
    #[component(name = "invalid")]
    Invalid(String),
    #[component(name = "full")]
    Full(String),
}

impl From<JobError> for Refusal {
    fn from(error: JobError) -> Self {
        let text = error.to_string();
        match error {
            JobError::NoJob | JobError::Settled => Self::NoJob(text),
            JobError::Invalid(_) => Self::Invalid(text),
            JobError::Full(_) => Self::Full(text),
        }
    }
}
