/* test_report.c - lines of a report that a sound machine never shows. */
#include <stdio.h>

#include "check.h"
#include "cli/report.h"

static char *text;
static size_t bytes;

static void say(const struct tutti_pool_info *info)
{
	FILE *f = open_memstream(&text, &bytes);

	CHECK(f);
	report_syncs(f, 14, info);
	CHECK_EQ(fclose(f), 0);
}

static void failed_syncs_are_told(void)
{
	struct tutti_pool_info info = {0};
	json_t *o = json_object();

	say(&info);
	CHECK_EQ(bytes, 0);
	free(text);
	info.failed_syncs = 3;
	say(&info);
	CHECK(strstr(text, "3 failed") && strstr(text, "worked") && strstr(text, "tutti verify"));
	free(text);
	info.sync_failing = 1;
	say(&info);
	CHECK(strstr(text, "the last one too"));
	free(text);
	report_syncs_json(o, &info);
	CHECK_EQ(json_integer_value(json_object_get(o, "failed_syncs")), 3);
	CHECK(json_is_true(json_object_get(o, "sync_failing")));
	json_decref(o);
}

int main(void)
{
	CHECK_RUN(failed_syncs_are_told);
	return check_end();
}
