//! Detection of files with secrets that other users of the machine can read or change.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Config;

/// Permission of other users to read.
const S_IROTH: u32 = 0o004;
/// Permission of other users to write.
const S_IWOTH: u32 = 0o002;

impl Config {
    /// Warnings about the permissions of files with secrets, a sentence each. A file that cannot be examined is
    /// reported elsewhere.
    pub fn exposed_secrets(&self) -> Vec<String> {
        let chap = self.iscsi.iter().flat_map(|iscsi| &iscsi.chap);
        let secrets =
            chap.flat_map(|chap| std::iter::once(&chap.secret_file).chain(chap.mutual.as_ref().map(|(_, file)| file)));
        let keys = [self.nbd.tls.as_ref().map(|tls| &tls.files.key), self.api.tls.as_ref().map(|files| &files.key)];
        // The webhook's address is a secret: knowing it suffices to post there.
        let webhook = self.alerts.webhook.as_ref().map(|_| &self.file);
        let files = secrets.map(|file| ("CHAP secret", file));
        let mail = self.alerts.mail.as_ref().and_then(|mail| mail.server.login.as_ref());
        let files = files.chain(mail.map(|login| ("mail password", &login.password_file)));
        let files = files.chain(keys.into_iter().flatten().map(|file| ("TLS key", file)));
        let files = files.chain(webhook.map(|file| ("configuration, with the webhook's address,", file)));
        files.filter_map(|(content, file)| exposure_warning(content, file)).collect()
    }
}

/// A warning if other users can read or change `file`, which holds `content`.
fn exposure_warning(content: &str, file: &Path) -> Option<String> {
    let mode = std::fs::metadata(file).ok()?.mode();
    let access = match (mode & S_IROTH != 0, mode & S_IWOTH != 0) {
        (_, true) => "changed",
        (true, false) => "read",
        (false, false) => return None,
    };
    let shown = file.display();
    Some(format!(
        "the {content} in {shown} can be {access} by every user of this machine; assign it to the daemon's user or \
         group, and: chmod 0640 {shown}"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_that_other_users_can_read_or_change_gives_a_warning() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("secret");
        std::fs::write(&file, "123456789012").expect("written");
        for (mode, word) in [(0o600, None), (0o640, None), (0o644, Some("read")), (0o666, Some("changed"))] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).expect("the test owns the file");
            let warning = exposure_warning("CHAP secret", &file);
            assert_eq!(warning.is_some(), word.is_some(), "{mode:o}: {warning:?}");
            if let (Some(warning), Some(word)) = (warning, word) {
                assert!(warning.contains(word) && warning.contains("chmod 0640"), "{warning}");
            }
        }
        assert_eq!(exposure_warning("CHAP secret", &folder.path().join("missing")), None);
    }
}
