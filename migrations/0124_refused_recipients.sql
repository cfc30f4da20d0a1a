-- Why a mail server refused recipients for good. Their addresses are in `delivered`, so that nobody asks for them again.
-- When the other recipients have their mails, the notification has failed, for these reasons.
ALTER TABLE heddle.notifications ADD COLUMN refused text[] NOT NULL DEFAULT '{}';
