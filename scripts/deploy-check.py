"""Checks deploy/k8s and deploy/skypilot with the schemas of the programs that read them. Called by scripts/deploy-check.sh.

Unknown fields are errors, because a cluster would silently drop a misspelt one.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent / "deploy"
problems = []
# Values of an instance that differ from those of every file.
OWN = {"type": "x9.metal", "gpus": 3, "cards": 21, "rails": 7, "label": "ml.x9.metal"}


def say(line):
    print(line, flush=True)


def strict(schema):
    """Returns the schema with unknown fields forbidden."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    if "properties" in schema and isinstance(schema["properties"], dict) and "additionalProperties" not in schema:
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    return schema


def kustomized(folder):
    """Returns the documents from kubectl's kustomize, which rejects a variable without a target."""
    made = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60)
    if made.returncode != 0:
        problems.append(f"kubectl kustomize {folder}: {made.stderr.strip()[:300]}")
    return [one for one in yaml.safe_load_all(made.stdout) if one]


def overlay(base, components=()):
    """Returns an overlay for an instance with the values OWN and further components, made in a temporary directory."""
    with tempfile.TemporaryDirectory() as parent:
        shutil.copytree(ROOT / "k8s", pathlib.Path(parent) / "k8s")
        folder = pathlib.Path(parent) / "k8s" / "own"
        shutil.copytree(ROOT / "k8s/p5en", folder)
        file = folder / "kustomization.yaml"
        kustomization = yaml.safe_load(file.read_text())
        kustomization["resources"] = [f"../{base}"]
        kustomization["configMapGenerator"][0]["literals"] = [f"{name}={value}" for name, value in OWN.items()]
        kustomization["components"] += [f"../{name}" for name in components]
        file.write_text(yaml.safe_dump(kustomization))
        return kustomized(folder)


def where(document, found, path=()):
    """Returns every path of a document whose value is `found`."""
    if isinstance(document, dict):
        return [place for key, value in document.items() for place in where(value, found, (*path, key))]
    if isinstance(document, list):
        return [place for index, value in enumerate(document) for place in where(value, found, (*path, index))]
    return [path] if str(document) == str(found) else []


def variables():
    """Checks that an instance's values replace all values of a p5."""
    for base, kind, places in [("mpijob", "MPIJob", [1, 5, 4, 1, 1]), ("job", "Job", [1, 3, 2, 1, 1])]:
        document = next(one for one in overlay(base) if one["kind"] == kind)
        found = [len(where(document, value)) for value in OWN.values()]
        left = [value for value in ("p5.48xlarge", "32") if where(document, value)]
        if found != places or left:
            problems.append(f"deploy/k8s/{base}: type, gpus, cards, rails, label reach {found} fields, expected {places}; values of a p5: {left}")
        if kind == "MPIJob" and document["spec"]["slotsPerWorker"] != OWN["gpus"]:
            problems.append("deploy/k8s/mpijob: slotsPerWorker is not a number")
    say("checked that type, gpus, cards, rails and label of an instance reach MPIJob and Job")


def fits(name, document, schema):
    """Validates a document with the operator's schema or that of Kubernetes."""
    import kubernetes_validate

    if document["kind"] == "MPIJob":
        errors = jsonschema.Draft7Validator(schema).iter_errors(document)
        problems.extend(f"{name}: {'/'.join(map(str, error.path))}: {error.message[:200]}" for error in errors)
        return
    try:
        kubernetes_validate.validate(document, "1.34", strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        problems.append(f"{name}: {error}")


def components(schema):
    """Checks the components `dra` and `claim`, applied after an instance's values."""
    for base, names, kinds in [
        ("mpijob", ["dra", "claim"], {"MPIJob", "ResourceClaimTemplate", "PersistentVolumeClaim"}),
        ("job", ["dra"], {"Job", "Service", "ResourceClaimTemplate"}),
    ]:
        made = overlay(base, names)
        if {one["kind"] for one in made} != kinds:
            problems.append(f"deploy/k8s/{base} with {names}: {[one['kind'] for one in made]}, expected {sorted(kinds)}")
        for document in made:
            name = f"deploy/k8s/{base} with {', '.join(names)}: {document['kind']} {document['metadata']['name']}"
            fits(name, document, schema)
            if document["kind"] in ("MPIJob", "Job"):
                left, claims = '"vpc.amazonaws.com/efa":' in json.dumps(document), where(document, "ginlab-efa")
                if left or len(claims) != 1:
                    problems.append(f"{name}: requests devices from the device plugin, or not from the DRA driver")
            say(f"checked {name}")


def operators_schema(crd):
    versions = yaml.safe_load(pathlib.Path(crd).read_text())["spec"]["versions"]
    schema = strict(next(one for one in versions if one["name"] == "v2beta1")["schema"]["openAPIV3Schema"])
    # Common to all objects, and not part of the operator's schema.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def kubernetes(schema):
    expected = {
        "mpijob": ("p5.48xlarge", "32", "4"),
        "p5en": ("p5en.48xlarge", "16", "2"),
        "p6-b200": ("p6-b200.48xlarge", "8", "1"),
        "p6-b300": ("p6-b300.48xlarge", "16", "2"),
    }
    for folder in [*expected, "job", "gate"]:
        for document in kustomized(ROOT / "k8s" / folder):
            name = f"deploy/k8s/{folder}: {document['kind']} {document['metadata']['name']}"
            fits(name, document, schema)
            if document["kind"] == "MPIJob":
                roles = document["spec"]["mpiReplicaSpecs"]
                worker = roles["Worker"]["template"]["spec"]
                instance, cards, rails = expected[folder]
                pods = worker["containers"] + worker["initContainers"]
                asked = {one["resources"][kind]["vpc.amazonaws.com/efa"] for one in pods for kind in ("requests", "limits")}
                given = {one["name"]: one.get("value") for one in roles["Launcher"]["template"]["spec"]["containers"][0]["env"]}
                facts = (worker["nodeSelector"]["node.kubernetes.io/instance-type"], asked, given["RAILS"])
                looked_for = {one["name"]: one["value"] for one in worker["initContainers"][0]["env"]}["INSTANCE"]
                if facts != (instance, {cards}, rails) or looked_for != instance:
                    problems.append(f"{name}: {facts}, expected {(instance, cards, rails)}")
            say(f"checked {name}")
    components(schema)


def a_wrong_field_is_found(schema):
    """Checks that validation rejects a misspelt field."""
    document = next(one for one in kustomized(ROOT / "k8s" / "mpijob") if one["kind"] == "MPIJob")
    document["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    if not any("imagePulPolicy" in error.message for error in jsonschema.Draft7Validator(schema).iter_errors(document)):
        problems.append("a misspelt field of a container is not detected")
    say("checked that a misspelt field is rejected")


def aws():
    """Checks the arguments of the AWS lines of docs/two-p5.md with the AWS command line, without a request."""
    page = (ROOT.parent / "docs/two-p5.md").read_text()
    script = [block.split("```")[1] for block in page.split("<!-- arguments: aws -->")[1:]]
    home = str(pathlib.Path(sys.executable).parent)
    nobody = {
        "PATH": f"{home}:/usr/bin:/bin",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        **{name: f"{name.lower()}-0123" for name in ("VPC", "SUBNET", "AMI", "KEY", "RESERVATION", "IDS", "ADDRESS")},
        "INSTANCE": "p5.48xlarge",
        "FROM": "203.0.113.7/32",
    }
    template = subprocess.run([ROOT / "aws/interfaces.sh", "p5.48xlarge", "subnet-0123", "sg-0123"], capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "template.json").write_text(template.stdout)
        lines = [line for block in script for line in block.splitlines() if line]
        # The last line is invalid and must be rejected.
        launch = next(line for line in lines if "CapacityReservationId" in line)
        for line, wanted in [(line, True) for line in lines] + [(launch.replace("CapacityReservationId", "CapacityReservation"), False)]:
            command = f"GROUP=sg-0123; {line}"
            said = subprocess.run(["bash", "-c", command], cwd=folder, env=nobody, capture_output=True, text=True, timeout=120).stderr
            taken = "Could not connect to the endpoint" in said
            if taken != wanted:
                problems.append(f"docs/two-p5.md: {line}: {said.strip()[:300]}")
    say(f"checked the arguments of {len(lines)} AWS lines of docs/two-p5.md, without a request")


def skypilot():
    import sky
    from sky.utils import common_utils, schemas

    for name in ["kubernetes.yaml", "ginlab.yaml"]:
        config = yaml.safe_load((ROOT / "skypilot" / name).read_text())
        # Normally given as --secret GINLAB_TOKEN=...
        config["secrets"]["GINLAB_TOKEN"] = "0123456789abcdef"
        common_utils.validate_schema(config, schemas.get_task_schema(), f"{name}: ")
        common_utils.validate_schema(config["resources"], schemas.get_resources_schema(), f"{name}: resources: ")
        how = "schemas of task and resources"
        try:
            task = sky.Task.from_yaml_config(config)
            how = f"{task.num_nodes} nodes, {next(iter(task.resources))}, envs {json.dumps(task.envs)}"
            if task.num_nodes != 2:
                problems.append(f"{name}: expected two nodes, parsed {task.num_nodes}")
        except OSError as error:
            # The catalog of a cloud's instances needs a network.
            how += f" (the task itself needs the cloud's catalog: {type(error).__name__})"
        say(f"checked deploy/skypilot/{name} by SkyPilot {sky.__version__}: {how}")


if __name__ == "__main__":
    schema = operators_schema(sys.argv[1])
    kubernetes(schema)
    a_wrong_field_is_found(schema)
    variables()
    aws()
    if sys.argv[2] == "yes":
        skypilot()
    for problem in problems:
        print(f"deploy-check: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)
