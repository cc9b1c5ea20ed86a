//! Parses the two documents of the task metadata endpoint. hostler takes its OpenTelemetry resource attributes and its limits
//! from these documents.
//!
//! The ECS guide documents the fields ("Task metadata endpoint version 4"). The set of fields depends on the launch type and the
//! agent version. Therefore, all fields are optional here.

use serde_json::Value;

use hostler_telemetry::Resource;

const MIB: u64 = 1024 * 1024;

/// Metadata of the ECS task that contains this container.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// Resource attributes of logs, metrics and traces.
    pub resource: Resource,
    /// Memory limit of this container in bytes: the lower of the container's limit and the task's limit.
    pub memory_limit: Option<u64>,
    /// CPU limit of the task in vCPUs. Ignores the container's own `CPU` value, which is only a relative weight.
    pub cpu_limit: Option<f64>,
}

impl Metadata {
    /// Parses the documents of the container and its task.
    pub(super) fn read(container: &Value, task: &Value) -> Self {
        let memory = [container, task].map(|document| document["Limits"]["Memory"].as_u64().filter(|mib| *mib > 0));
        Self {
            resource: resource(container, task),
            memory_limit: memory.into_iter().flatten().min().map(|mib| mib.saturating_mul(MIB)),
            cpu_limit: task["Limits"]["CPU"].as_f64().filter(|cpus| *cpus > 0.0),
        }
    }
}

/// Returns the attributes defined in opentelemetry.io/docs/specs/semconv/resource: `cloud`, `aws.ecs`, `container`.
fn resource(container: &Value, task: &Value) -> Resource {
    let mut resource = Resource::new();
    resource.set("cloud.provider", Some("aws"));
    resource.set("cloud.platform", Some("aws_ecs"));
    resource.set("cloud.availability_zone", text(task, "AvailabilityZone"));

    let arn = text(task, "TaskARN").and_then(Arn::parse);
    resource.set("cloud.region", arn.as_ref().map(|arn| arn.region));
    resource.set("cloud.account.id", arn.as_ref().map(|arn| arn.account));
    resource.set("aws.ecs.task.arn", arn.as_ref().map(|arn| arn.whole));
    resource.set("aws.ecs.task.id", arn.as_ref().and_then(|arn| arn.resource.rsplit('/').next()));
    resource.set("aws.ecs.cluster.arn", text(task, "Cluster").and_then(|name| cluster(name, arn.as_ref())));
    resource.set("aws.ecs.task.family", text(task, "Family"));
    resource.set("aws.ecs.task.revision", text(task, "Revision"));
    resource.set("aws.ecs.launchtype", text(task, "LaunchType").map(str::to_ascii_lowercase));

    resource.set("aws.ecs.container.arn", text(container, "ContainerARN"));
    resource.set("container.id", text(container, "DockerId"));
    // The semantic conventions require the name that the container runtime uses, which differs from the name in the task
    // definition.
    resource.set("container.name", text(container, "DockerName").or_else(|| text(container, "Name")));
    let image = text(container, "Image").map(image);
    resource.set("container.image.name", image.map(|(name, _)| name));
    resource.set("container.image.tags", image.and_then(|(_, tag)| Some(vec![tag?.to_owned()])));
    resource
}

fn text<'a>(document: &'a Value, name: &str) -> Option<&'a str> {
    document[name].as_str().filter(|text| !text.is_empty())
}

/// A parsed ARN of the form `arn:PARTITION:ecs:REGION:ACCOUNT:RESOURCE`.
struct Arn<'a> {
    whole: &'a str,
    partition: &'a str,
    region: &'a str,
    account: &'a str,
    resource: &'a str,
}

impl<'a> Arn<'a> {
    fn parse(whole: &'a str) -> Option<Self> {
        let mut parts = whole.splitn(6, ':');
        let ("arn", partition, _service) = (parts.next()?, parts.next()?, parts.next()?) else { return None };
        Some(Self {
            whole,
            partition,
            region: parts.next()?,
            account: parts.next()?,
            resource: parts.next().filter(|resource| !resource.is_empty())?,
        })
    }
}

/// Returns the ARN of the cluster. If the document contains only the cluster's short name, takes the missing parts from the
/// task's ARN.
fn cluster(name: &str, task: Option<&Arn<'_>>) -> Option<String> {
    if name.starts_with("arn:") {
        return Some(name.to_owned());
    }
    let Arn { partition, region, account, .. } = task?;
    Some(format!("arn:{partition}:ecs:{region}:{account}:cluster/{name}"))
}

/// Splits an image reference into its name and its tag. The name excludes tag and digest. A colon before the last slash belongs
/// to the port of the registry.
fn image(image: &str) -> (&str, Option<&str>) {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (image, None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attributes(container: &Value, task: &Value) -> Value {
        serde_json::to_value(Metadata::read(container, task).resource).unwrap()
    }

    #[test]
    fn a_fargate_task_has_all_attributes() {
        let container = json!({
            "DockerId": "cd189a933e5849daa93386466019ab50-2495160603",
            "Name": "hostler",
            "DockerName": "hostler-1",
            "Image": "registry.example:5000/media/hostler:1.2@sha256:abc",
            "Limits": { "CPU": 2, "Memory": 400 },
            "ContainerARN": "arn:aws:ecs:eu-west-1:111122223333:container/default/c1/b",
        });
        let task = json!({
            "Cluster": "default",
            "TaskARN": "arn:aws:ecs:eu-west-1:111122223333:task/default/c1",
            "Family": "thumbnails",
            "Revision": "7",
            "Limits": { "CPU": 0.25, "Memory": 512 },
            "AvailabilityZone": "eu-west-1a",
            "LaunchType": "FARGATE",
            "Containers": [container],
        });
        let expected = json!({
            "aws.ecs.cluster.arn": "arn:aws:ecs:eu-west-1:111122223333:cluster/default",
            "aws.ecs.container.arn": "arn:aws:ecs:eu-west-1:111122223333:container/default/c1/b",
            "aws.ecs.launchtype": "fargate",
            "aws.ecs.task.arn": "arn:aws:ecs:eu-west-1:111122223333:task/default/c1",
            "aws.ecs.task.family": "thumbnails",
            "aws.ecs.task.id": "c1",
            "aws.ecs.task.revision": "7",
            "cloud.account.id": "111122223333",
            "cloud.availability_zone": "eu-west-1a",
            "cloud.platform": "aws_ecs",
            "cloud.provider": "aws",
            "cloud.region": "eu-west-1",
            "container.id": "cd189a933e5849daa93386466019ab50-2495160603",
            "container.image.name": "registry.example:5000/media/hostler",
            "container.image.tags": ["1.2"],
            "container.name": "hostler-1",
            "service.name": "hostler",
            "service.version": env!("CARGO_PKG_VERSION"),
        });
        assert_eq!(attributes(&container, &task), expected);
        let metadata = Metadata::read(&container, &task);
        assert_eq!((metadata.memory_limit, metadata.cpu_limit), (Some(400 * MIB), Some(0.25)));
    }

    #[test]
    fn what_is_missing_or_no_text_is_left_out() {
        let known = json!({
            "cloud.platform": "aws_ecs",
            "cloud.provider": "aws",
            "service.name": "hostler",
            "service.version": env!("CARGO_PKG_VERSION"),
        });
        let odd = json!({ "TaskARN": "arn:aws", "Cluster": "default", "Family": "", "Revision": 7, "Limits": [] });
        for document in [json!({}), odd] {
            assert_eq!(attributes(&document, &document), known);
            let metadata = Metadata::read(&document, &document);
            assert_eq!((metadata.memory_limit, metadata.cpu_limit), (None, None));
        }
    }

    #[test]
    fn the_lower_memory_limit_counts_and_zero_is_none() {
        let limit = |container: Value, task: Value| {
            let of = |memory: Value| json!({ "Limits": { "CPU": 0, "Memory": memory } });
            Metadata::read(&of(container), &of(task)).memory_limit
        };
        assert_eq!(limit(json!(0), json!(512)), Some(512 * MIB));
        assert_eq!(limit(json!(1024), json!(512)), Some(512 * MIB));
        assert_eq!(limit(json!(128), Value::Null), Some(128 * MIB));
        assert_eq!(limit(json!(0), json!(-1)), None);
    }

    #[test]
    fn images_have_a_name_and_perhaps_a_tag() {
        assert_eq!(image("hostler"), ("hostler", None));
        assert_eq!(image("hostler:1"), ("hostler", Some("1")));
        assert_eq!(image("registry:5000/a/hostler"), ("registry:5000/a/hostler", None));
        assert_eq!(image("registry:5000/a/hostler:1"), ("registry:5000/a/hostler", Some("1")));
        assert_eq!(image("hostler@sha256:abc"), ("hostler", None));
    }

    #[test]
    fn a_cluster_may_come_as_an_arn() {
        let whole = "arn:aws-cn:ecs:cn-north-1:1:cluster/c";
        assert_eq!(cluster(whole, None).as_deref(), Some(whole));
        let task = Arn::parse("arn:aws-cn:ecs:cn-north-1:1:task/c/t");
        assert_eq!(cluster("c", task.as_ref()).as_deref(), Some(whole));
        assert_eq!(cluster("c", None), None);
    }
}
