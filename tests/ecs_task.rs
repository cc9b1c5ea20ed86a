//! `ecs-task.json` and `config/ecs-service.yaml`: what registers, what is refused, and that the two agree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::hostler::{Said, World};
use crate::support::python::python;
use crate::support::servers::{Kind, Server, installed, unique};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The account that moto plays, and that the task definition's placeholders name.
const ACCOUNT: &str = "123456789012";

/// Prints the template `argv[1]` as JSON, its short tags as `Fn::…`.
const PARSE: &str = "
from awscli.customizations.cloudformation.yamlhelper import yaml_parse
print(json.dumps(yaml_parse(open(sys.argv[1]).read())))
";

/// Creates the stack `argv[1]` from the template `argv[2]`, in a cluster of the same name and with the parameters
/// `argv[3]` beside those of the network; prints what came of it.
const DEPLOY: &str = r#"
import ast

cloudformation, ecs, ec2, iam = (boto3.client(service) for service in ("cloudformation", "ecs", "ec2", "iam"))
stack = sys.argv[1]
ecs.create_cluster(clusterName=stack)
subnets = ",".join(subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"])
group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
parameters = {"Cluster": stack, "Subnets": subnets, "SecurityGroups": group} | json.loads(sys.argv[3])
cloudformation.create_stack(
    StackName=stack,
    TemplateBody=open(sys.argv[2]).read(),
    Capabilities=["CAPABILITY_IAM"],
    Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
)
# moto knows nothing of scaling targets and alarms made by a stack, and lists them without a name.
made = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
made = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in made if "LogicalResourceId" in one}


def role(name):
    """Its policies, which moto keeps as Python writes them."""
    policies = iam.list_role_policies(RoleName=name)["PolicyNames"]
    documents = {one: iam.get_role_policy(RoleName=name, PolicyName=one)["PolicyDocument"] for one in policies}
    return {one: ast.literal_eval(text) if isinstance(text, str) else text for one, text in documents.items()}


print(json.dumps({
    "status": cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"],
    "task": ecs.describe_task_definition(taskDefinition=made["TaskDefinition"])["taskDefinition"],
    "service": ecs.describe_services(cluster=stack, services=[made["Service"]])["services"][0],
    "task_role": role(made["TaskRole"]),
    "execution_role": role(made["ExecutionRole"]),
}, default=str))
"#;

fn server() -> &'static Server {
    Server::shared(Kind::Moto)
}

fn task() -> Value {
    serde_json::from_str(include_str!("../ecs-task.json")).unwrap()
}

fn container() -> Value {
    task()["containerDefinitions"][0].clone()
}

/// Its entries of this kind, `environment` or `secrets`: each name, and what is under `key`.
fn entries(kind: &str, key: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    container()[kind].as_array().unwrap().iter().map(|entry| (text(&entry["name"]), text(&entry[key]))).collect()
}

fn variable(name: &str) -> String {
    entries("environment", "value").into_iter().find(|(found, _)| found == name).unwrap().1
}

fn template_path() -> PathBuf {
    Path::new(ROOT).join("config/ecs-service.yaml")
}

fn template() -> Value {
    serde_json::from_str(&python(server(), PARSE, &[template_path().to_str().unwrap()])).unwrap()
}

/// Renders the template with the placeholders of the task definition as its parameters, and with the same name.
fn stack() -> Value {
    let (name, path) = (unique("worker"), template_path());
    let secrets = entries("secrets", "valueFrom");
    let secret = secrets.into_iter().find(|(_, from)| from.starts_with("arn:aws:secretsmanager:")).unwrap().1;
    let parameters = json!({ "ApiKeySecret": secret }).to_string();
    let printed = python(server(), DEPLOY, &[&name, path.to_str().unwrap(), &parameters]);
    serde_json::from_str(&printed.replace(&name, "hostler-worker")).unwrap()
}

/// Registers the task definition in this file, by the AWS CLI.
fn register(file: &str) -> Output {
    let mut command = Command::new(installed("clients").join("bin/aws"));
    command.args(["ecs", "register-task-definition", "--cli-input-json", &format!("file://{file}")]);
    command.current_dir(ROOT).env_clear().envs(server().env());
    command.envs(["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"].map(|name| (name, "/dev/null")));
    command.output().unwrap()
}

fn registered() -> Value {
    let output = register("ecs-task.json");
    assert!(output.status.success(), "{output:?}");
    let mut answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["taskDefinition"].take()
}

/// Returns true if everything in `wanted` was found. Other findings do not matter.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| found.get(name).is_some_and(|found| holds(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| holds(found, wanted))
        }
        _ => found == wanted,
    }
}

#[test]
fn it_registers_as_it_is() {
    let registered = registered();
    assert_eq!(registered["status"], "ACTIVE");
    assert!(holds(&registered, &task()), "{registered:#}");
}

#[test]
fn what_is_not_quite_a_task_definition_is_refused() {
    let refused = |reason: &str, change: fn(&mut Value)| {
        let (folder, mut task) = (tempfile::tempdir().unwrap(), task());
        change(&mut task["containerDefinitions"][0]);
        let file = folder.path().join("task.json");
        fs::write(&file, task.to_string()).unwrap();
        let output = register(file.to_str().unwrap());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{reason}: {said}");
    };
    refused("Unknown parameter in containerDefinitions[0]: \"stopTimout\"", |container| {
        container["stopTimout"] = json!(30);
    });
    refused("Invalid type for parameter containerDefinitions[0].healthCheck.interval", |container| {
        container["healthCheck"]["interval"] = json!("10");
    });
    refused("Missing required parameter in containerDefinitions[0].linuxParameters.tmpfs[0]: \"size\"", |container| {
        container["linuxParameters"]["tmpfs"][0].as_object_mut().unwrap().remove("size");
    });
}

#[test]
fn it_is_found_unhealthy_and_stopped_in_time() {
    let container = container();
    let check = &container["healthCheck"];
    let snippet: Value = serde_json::from_str(include_str!("../healthcheck/ecs-healthcheck.json")).unwrap();
    assert_eq!(*check, snippet["healthCheck"]);
    // Not CMD-SHELL: there is no shell, and a shell's `|| exit 0` would hide everything.
    assert_eq!(check["command"], json!(["CMD", "/hostler", "check-consumer-health"]));
    let seconds = |name: &str| check[name].as_u64().unwrap();
    let (interval, timeout, retries) = (seconds("interval"), seconds("timeout"), seconds("retries"));
    // What ECS takes, by the reference of its type HealthCheck.
    assert!((5..=300).contains(&interval) && (2..=60).contains(&timeout) && (1..=10).contains(&retries), "{check}");
    assert!(timeout < interval && interval * retries <= 30 && seconds("startPeriod") <= 300, "{check}");

    let grace = variable("HOSTLER_HOST__SHUTDOWN_GRACE");
    let default = format!("| `host.shutdown_grace` | `{grace}` |");
    assert!(hostler_config::reference().contains(&default), "not the default: {grace}");
    let grace = humantime::parse_duration(&grace).unwrap().as_secs();
    // Fargate's limit, and time for what comes after the drain.
    assert!((grace + 5..=120).contains(&container["stopTimeout"].as_u64().unwrap()), "{container:#}");
}

#[test]
fn it_can_do_no_more_than_it_must() {
    let (task, container) = (task(), container());
    assert_eq!(task["containerDefinitions"].as_array().unwrap().len(), 1, "there is no sidecar");
    assert_eq!((&container["user"], &container["readonlyRootFilesystem"]), (&json!("65532:65532"), &json!(true)));
    let linux = &container["linuxParameters"];
    assert_eq!(linux["capabilities"], json!({ "drop": ["ALL"] }));
    assert_eq!(container.get("privileged"), None);
    // The one place that it can write to is the one that it has to.
    assert_eq!(linux["tmpfs"].as_array().unwrap().len(), 1);
    let writable = linux["tmpfs"][0]["containerPath"].as_str().unwrap();
    assert!(Path::new(&variable("HOSTLER_HOST__HEALTH_FILE")).starts_with(writable), "{writable}");
    assert_eq!(task.get("volumes"), None);

    let options = &container["logConfiguration"]["options"];
    assert_eq!(
        (&options["mode"], &container["logConfiguration"]["logDriver"]),
        (&json!("non-blocking"), &json!("awslogs"))
    );
    assert!(options["max-buffer-size"].is_string());

    for (name, from) in entries("secrets", "valueFrom") {
        let stores = ["secretsmanager", "ssm"].map(|store| format!("arn:aws:{store}:eu-west-1:{ACCOUNT}:"));
        assert!(stores.iter().any(|store| from.starts_with(store)), "{name}: {from}");
    }
    let telling = |name: &str| ["KEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|word| name.contains(word));
    assert!(entries("environment", "value").iter().all(|(name, _)| !telling(name)), "a secret in plain sight");
}

/// The world of the task: its variables and secrets, its queues on moto, and the image's config.
struct Task(World);

impl Task {
    fn new() -> Self {
        let config = "[consumers.orders]\nchannel = 'orders'\nhandler = 'guests/main-echoes.wat'";
        Self(World::with("", server().env(), config))
    }

    fn hostler(&self, args: &[&str], more: Option<(&str, &str)>) -> Said {
        let mut command = self.0.command(args);
        command.envs(entries("environment", "value"));
        command.envs(entries("secrets", "valueFrom").into_iter().map(|(name, _)| (name, "s3cret")));
        let output = command.env("HOSTLER_CONFIG", self.0.path("hostler.toml")).envs(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

#[test]
fn its_variables_are_keys_that_hostler_knows() {
    let task = Task::new();
    let provisioned = task.hostler(&["provision"], None);
    assert!(provisioned.code == 0 && provisioned.stdout.contains("+ queue prod-orders:"), "{provisioned:?}");
    let checked = task.hostler(&["check"], None);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(!format!("{provisioned:?}{checked:?}").contains("s3cret"));
    let mistyped = task.hostler(&["check"], Some(("HOSTLER_HOST__SHUTDOWN_GRAZE", "25s")));
    assert_eq!(mistyped.code, 64, "{mistyped:?}");
}

fn lint(template: &Path) -> (bool, String) {
    let mut command = Command::new(installed("cfn-lint").join("bin/cfn-lint"));
    // Down to what is merely information.
    command.args(["--regions", "eu-west-1", "--include-checks", "I", "--format", "parseable", "--template"]);
    let output = command.arg(template).env_clear().output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn cfn_lint_has_nothing_to_say_of_the_template() {
    assert_eq!(lint(&template_path()), (true, String::new()));
}

#[test]
fn cfn_lint_refuses_a_broken_template() {
    let (template, folder) = (fs::read_to_string(template_path()).unwrap(), tempfile::tempdir().unwrap());
    for (right, wrong, rule) in [
        ("ReadonlyRootFilesystem", "ReadOnlyRootFilesystem", ":E3002:"),
        ("!GetAtt TaskRole.Arn", "!GetAtt TaskRoles.Arn", ":E1010:"),
        ("sqs:ReceiveMessage", "sqs:ReceiveMessages", ":W3037:"),
    ] {
        let file = folder.path().join("broken.yaml");
        fs::write(&file, template.replace(right, wrong)).unwrap();
        let (clean, said) = lint(&file);
        assert!(!clean && said.contains(rule), "{wrong}: {said}");
    }
}

#[test]
fn the_stack_runs_the_same_container() {
    let (stack, registered) = (stack(), registered());
    assert_eq!((&stack["status"], &stack["service"]["status"]), (&json!("CREATE_COMPLETE"), &json!("ACTIVE")));
    assert_eq!(stack["service"]["taskDefinition"], stack["task"]["taskDefinitionArn"]);
    assert_eq!(stack["task"]["family"], registered["family"]);
    assert_eq!(stack["task"]["containerDefinitions"], registered["containerDefinitions"]);

    // The rest of a task definition is lost on moto's way from a stack to ECS.
    let (task, template) = (task(), template());
    let properties = &template["Resources"]["TaskDefinition"]["Properties"];
    let value = |property: &Value| match property.get("Ref").and_then(Value::as_str) {
        Some(parameter) => template["Parameters"][parameter]["Default"].clone(),
        None => property.clone(),
    };
    for (name, property) in [
        (&task["requiresCompatibilities"], &properties["RequiresCompatibilities"]),
        (&task["networkMode"], &properties["NetworkMode"]),
        (&task["cpu"], &properties["Cpu"]),
        (&task["memory"], &properties["Memory"]),
        (&task["runtimePlatform"]["operatingSystemFamily"], &properties["RuntimePlatform"]["OperatingSystemFamily"]),
        (&task["runtimePlatform"]["cpuArchitecture"], &properties["RuntimePlatform"]["CpuArchitecture"]),
    ] {
        assert_eq!(*name, value(property));
    }
}

#[test]
fn its_roles_may_do_what_is_needed_and_no_more() {
    let stack = stack();
    let printed = Task::new().hostler(&["iam", "--account", ACCOUNT, "--cluster", "hostler-worker"], None);
    let mut queues: Value = serde_json::from_str(&printed.stdout).unwrap();
    let protection = queues["Statement"].as_array_mut().unwrap().pop().unwrap();
    assert_eq!(stack["task_role"]["queues"], queues, "{printed:?}");
    assert_eq!(stack["task_role"]["scale-in-protection"]["Statement"], json!([protection]));
    assert_eq!(protection["Action"], json!(["ecs:UpdateTaskProtection"]));
    assert_eq!(protection["Resource"], json!([format!("arn:aws:ecs:eu-west-1:{ACCOUNT}:task/hostler-worker/*")]));
    assert_eq!(stack["task_role"].as_object().unwrap().len(), 2);

    let statements = stack["execution_role"]["start"]["Statement"].as_array().unwrap();
    let resources = |sid: &str| &statements.iter().find(|statement| statement["Sid"] == sid).unwrap()["Resource"];
    for (name, from) in entries("secrets", "valueFrom") {
        let sid = if from.contains(":ssm:") { "Parameter" } else { "Secret" };
        assert_eq!(*resources(sid), json!(from), "{name}");
    }
    let anywhere = statements.iter().filter(|statement| statement["Resource"] == "*");
    assert!(
        anywhere.map(|statement| &statement["Action"]).eq([&json!("ecr:GetAuthorizationToken")]),
        "{statements:#?}"
    );
}

#[test]
fn it_scales_by_what_waits_and_can_always_be_placed() {
    let template = template();
    let policy = &template["Resources"]["Scaling"]["Properties"]["TargetTrackingScalingPolicyConfiguration"];
    let metrics = policy["CustomizedMetricSpecification"]["Metrics"].as_array().unwrap();
    assert_eq!(metrics.iter().filter(|metric| metric["ReturnData"] == true).count(), 1);
    // Names are in lower case, functions in upper; CloudWatch looks at them only when the scaling is at work.
    let ids: Vec<&str> = metrics.iter().map(|metric| metric["Id"].as_str().unwrap()).collect();
    for expression in metrics.iter().filter_map(|metric| metric["Expression"].as_str()) {
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric());
        let mut names = words.filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()));
        assert!(names.all(|name| ids.contains(&name)), "{expression} of {ids:?}");
    }

    let choice = &template["Resources"]["Service"]["Properties"]["CapacityProviderStrategy"]["Fn::If"];
    for strategy in [&choice[1], &choice[2]] {
        let providers = strategy.as_array().unwrap();
        // ECS places nothing by a weight of 0, and takes one base.
        assert!(providers.iter().all(|provider| provider["Weight"].as_u64().unwrap() > 0), "{strategy}");
        let based: Vec<_> = providers.iter().filter(|provider| provider.get("Base").is_some()).collect();
        assert!(
            based.len() <= 1 && based.iter().all(|provider| provider["CapacityProvider"] == "FARGATE"),
            "{strategy}"
        );
    }
}
