"""The numbers of the page. All are here; assets/*.js only place, format and sort them.

The records that occur by the thousand are arrays in JSON (array_like); `fields` of the page names their places. Times
are us, shares are parts of 1, ratios are time over time; floats keep six digits, which is more than any row has.
"""
