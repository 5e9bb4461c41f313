//! `make sqush`: an image for enroot and Pyxis, packed from a minimal root file system and started without enroot.
//! Docker and enroot are doubles that record their calls.

use std::fs::{create_dir_all, read_to_string, write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{JobOutput, clean, run, skip};

/// Programs that the script calls, except those that build or import an image.
const TOOLS: [&str; 16] = [
    "bash",
    "cat",
    "chmod",
    "dirname",
    "git",
    "gzip",
    "id",
    "install",
    "mkdir",
    "mktemp",
    "rm",
    "sed",
    "sh",
    "stat",
    "tar",
    "mksquashfs",
];
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/sqush.sh");

/// Returns the file of a program on the path.
fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a line of bash in a directory.
#[track_caller]
fn bash(folder: &Path, line: &str) {
    let done = Command::new("bash").args(["-euo", "pipefail", "-c", line]).current_dir(folder).status().unwrap();
    assert!(done.success(), "{line}");
}

/// Creates a root file system with a shell and the program's libraries (`base.tar`), and an archive in the form of
/// `make dist` (`archive.tar.gz`).
fn inputs(folder: &Path) {
    let program = env!("CARGO_BIN_EXE_ginlab");
    create_dir_all(folder.join("archive/ginlab/deploy")).unwrap();
    write(folder.join("archive/ginlab/libsoft_efa.so"), "").unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    bash(
        folder,
        &format!(
            "libraries=$(ldd /bin/sh {program} | grep -o '/[^ ]*[.]so[^ ]*' | sort -u)
            tar -chf base.tar -C / --transform 's,^/,,' -P /bin/sh $libraries
            ln {program} archive/ginlab/ginlab 2>/dev/null || cp {program} archive/ginlab/ginlab
            cp {root}/deploy/ranks.sh archive/ginlab/deploy/
            tar -C archive -cf - ginlab | gzip -1 >archive.tar.gz"
        ),
    );
}

/// Runs the script with only [`TOOLS`], except `without`, and the doubles of `folder/doubles` on the path.
fn sqush(folder: &Path, args: &str, without: &str) -> JobOutput {
    let tools = folder.join(format!("tools{without}"));
    create_dir_all(&tools).unwrap();
    for tool in TOOLS.iter().filter(|tool| **tool != without) {
        let Some(file) = which(tool) else { continue };
        // Exists already if an earlier call has made it.
        let _ = symlink(file, tools.join(tool));
    }
    let mut command = Command::new("bash");
    command.arg(SCRIPT).args(args.split_whitespace());
    clean(&mut command);
    command.env("PATH", std::env::join_paths([folder.join("doubles"), tools]).unwrap());
    command.env("ARCHIVE", folder.join("archive.tar.gz")).env("OUT", folder.join("ginlab.sqsh"));
    command.env("SQUASH_OPTIONS", "-noI -noD -noF -noX");
    command.env("BASE", folder.join("base.tar")).env("LOG", folder.join("log"));
    run(command)
}

/// Writes an executable script.
fn double(folder: &Path, name: &str, script: &str) {
    create_dir_all(folder.join("doubles")).unwrap();
    let path = folder.join("doubles").join(name);
    write(&path, format!("#!/bin/bash\necho {name} \"$@\" >>\"$LOG\"\n{script}")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Docker, whose image is `base.tar`.
const DOCKER: &str = r#"case $1 in
info | build | rm) ;;
create) echo container ;;
export) cat "$BASE" ;;
inspect) case $3 in *Env*) printf 'PATH=/bin\nA=a b\n\n' ;; *) printf '"ginlab" "doctor" ' ;; esac ;;
*) exit 1 ;;
esac"#;

#[test]
fn image_starts_with_archive_in_root_file_system() {
    if which("mksquashfs").is_none() {
        return skip("no mksquashfs");
    }
    let folder = tempfile::tempdir().unwrap();
    inputs(folder.path());
    let base = folder.path().join("base.tar");
    let start = if nix::unistd::geteuid().is_root() { "--start" } else { "" };
    let mut command = Command::new(SCRIPT);
    clean(&mut command);
    command.arg("--in").arg(base).args(start.split_whitespace());
    command.env("ARCHIVE", folder.path().join("archive.tar.gz")).env("OUT", folder.path().join("ginlab.sqsh"));
    command.env("SQUASH_OPTIONS", "-noI -noD -noF -noX");
    let done = run(command).expect(0);
    if start.is_empty() {
        return skip("no mount of its own for /dev/shm: the image is not started");
    }
    assert!(done.stdout.contains(&format!("ginlab {}", env!("CARGO_PKG_VERSION"))), "{}", done.stdout);
    let puts = done.stdout.lines().filter(|line| line.starts_with("put ") && line.contains("model:p5"));
    assert_eq!(puts.filter(|line| line.contains(" 0 ok")).count(), 2, "{}", done.stdout);
}

#[test]
fn missing_tool_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base.tar");
    for file in [&base, &folder.path().join("archive.tar.gz")] {
        write(file, "").unwrap();
    }
    let refused = |args: &str, part: &str| {
        let done = sqush(folder.path(), args, "mksquashfs").expect(2);
        assert!(done.complaint().starts_with("sqush.sh: ") && done.complaint().contains(part), "{}", done.stderr);
    };
    refused("", "neither docker nor podman is installed");
    refused("--unknown", "unknown argument --unknown");
    refused("--stage", "--stage: expected a value");
    refused("--in /nothing.tar", "/nothing.tar is not a file");
    refused(&format!("--in {}", base.display()), "mksquashfs is not installed (apt-get install squashfs-tools)");
    double(folder.path(), "docker", "exit 1");
    refused("", "docker does not respond");
    double(folder.path(), "docker", DOCKER);
    refused("", "neither enroot nor mksquashfs is installed");
}

#[test]
fn image_is_exported_or_imported() {
    if which("mksquashfs").is_none() {
        return skip("no mksquashfs");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(path.join("inside"), "x").unwrap();
    bash(path, "mkdir etc && tar -cf base.tar inside etc");
    double(path, "docker", DOCKER);
    sqush(path, "--stage laptop", "").expect(0);
    let log = read_to_string(path.join("log")).unwrap();
    let calls: Vec<&str> = log.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(calls, ["info", "build", "create", "export", "rm", "inspect", "inspect"], "{log}");
    assert!(log.contains("build --target laptop ") && log.contains("-t ginlab:laptop ."), "{log}");
    bash(path, "unsquashfs -quiet -no-progress -dest unpacked ginlab.sqsh >/dev/null && test -f unpacked/inside");
    assert_eq!(read_to_string(path.join("unpacked/etc/environment")).unwrap(), "PATH=/bin\nA=a b\n");
    assert!(read_to_string(path.join("unpacked/etc/rc")).unwrap().ends_with("exec \"ginlab\" \"doctor\" \n"));

    double(path, "enroot", r#"[[ ! -e $3 ]] && echo image >"$3""#);
    write(path.join("log"), "").unwrap();
    sqush(path, "--image registry/ginlab:first", "").expect(0);
    let log = read_to_string(path.join("log")).unwrap();
    let import = format!("enroot import -o {} dockerd://registry/ginlab:first", path.join("ginlab.sqsh").display());
    assert_eq!(log.lines().collect::<Vec<_>>(), ["docker info", &import]);
}
